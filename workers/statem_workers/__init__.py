"""Celery workers that execute what runs owe. Start one with ``statem-dist worker``."""
