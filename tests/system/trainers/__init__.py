"""Rendered trainings, run by the packages they are rendered for: cases.py, made.py, one.py."""
