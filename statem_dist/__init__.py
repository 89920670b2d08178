"""statem-dist: StateM runbooks executed as a distributed worker-queue service."""

__version__ = "0.1.0"
