"""What is rendered for SkyPilot, dstack and lyceum, given to those packages' own readers.

cases.py          the jobs, and what each engine is given of them
catalogue.py      a price list of SkyPilot's made of the bundled offers: its own is downloaded, and is not here
with_skypilot.py  run by SkyPilot's Python: its schema, its task, its optimizer
with_dstack.py    run by dstack's Python: the models of its configurations
with_lyceum.py    run by lyceum's Python: the arguments of its commands
__main__.py       `./dev system engines`
"""
