"""The embedded stack: a private Redis-compatible server per state directory, and the foreground runner of ``up``."""
