"""Measured runs for people: lists, one run, and predicted against measured as a plot.

plot.py  Predicted against measured: every run a point, the line where both are the same
text.py  Measured runs for the terminal: the fleet at a glance, one run in full, what was imported and published
"""
