"""Inputs nobody would write, at every door of the program, by the million: none may end it otherwise than documented.

    ./dev system fuzz [--inputs N] [--seed S] [--only DOOR[:NUMBER]]

    door, number, seed ──► an input (`readings`, `commands`) ──► asked in a forked process of bounded CPU time and
    memory (`workers`) ──► what became of it (`outcomes`) ──► a table by door, and tests/system/results/fuzz.json

An input depends on its door, its number and the seed alone, so any one of them can be asked again by itself.
"""
