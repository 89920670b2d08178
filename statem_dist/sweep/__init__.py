"""Sweeps: a runbook, a matrix of what to vary, and one run per cell and repetition, driven to an end.

``spec`` reads a sweep file, ``trials`` plans, ``driver`` drives one trial, ``pool`` drives many at once, ``crew`` are
the workers for the length of a sweep, ``results`` and ``report`` say what came of it, ``session`` puts it together.
"""
