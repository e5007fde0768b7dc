"""What a worker is asked, and what it answers.

exports.py    A job as what somebody takes along: a job file, a command, Python, a Slurm script, a SkyPilot task, a
              report
jobs.py       A job as a client sends it
look.py       What the page shows while a slider moves, of one prediction and in one answer
patching.py   A file that was dropped on the page, with what was changed there written into it: its own words, order
              and comments
questions.py  Every question of the API: what a worker is given, and what it answers
stored.py     Questions about the store of measured runs, answered in the server's own process: a worker sees neither
              the store nor a network that a PostgreSQL store is behind
"""
