"""The command line ``statem-dist``: thin over the engine, quick to start."""
