"""From a plan to a running job: files and commands for a trainer and an engine, and what was started by them.
"""
