"""What measured runs teach: so far, what the user's own card can do (`calibrate.py`).

calibrate.py   Measure this machine's card in a process of its own, with the Python that has torch
checks.py      What one value of a record may be: finite, bounded, and of few characters
comparing.py   The measured runs nearest to a job: those that come with the package, and those in the store
learning.py    From records of runs to what they teach (`Learned`): which count, which do not, and why
lessons.py     What the runs in the store teach of a card, brought to every prediction for it; and which runs were
               told to count no longer
measure.py     Run by the Python that has torch: measure this machine's card, and print what was found as one JSON
               object
publishing.py  A run as it may be given to anybody: without what is its owner's alone
record.py      A measured run, `tunecast.run/1`: what a training took, on which hardware and software, and what was
               predicted
recordable.py  What of a job and of its model is recorded: all that prediction needs, and nothing that says whose they
               are
shipped.py     Runs that come with the package: measured on other people's cards, in the form in which anybody's are
               published
store.py       Where calibrations are kept: one file a kind of card, in the user's own data folder
runs_store/    Where measured runs are kept: a file of SQLite, or a PostgreSQL server, through the same statements
"""
