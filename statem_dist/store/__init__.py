"""Where runs are kept: the port that the coordinator uses, and its Redis implementation."""
