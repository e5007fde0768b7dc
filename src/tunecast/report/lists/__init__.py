"""Lists and comparisons: cards, machines, offers, what fits, what differs.

cards.py       Cards for the terminal and for programs: a line each, or all that is known of one
compare.py     Two jobs side by side, for the terminal and for programs: memory, time and money
data.py        Training data, for the terminal: what it is, how long its samples are, what a job makes of them
diff.py        What changed training files need and cost, for a terminal and, as Markdown, for a pull request
fit.py         What to change so that a job fits or takes less time, for the terminal and for programs
largest.py     What fits a card at most, for the terminal and for programs
launch.py      What a launch would run, what it started, and how it stands
machines.py    Machines and links for the terminal and for programs: a line each, or all that is known of one
offer_md.py    What compliance asks of one offer, as Markdown: whose it is, whose law reaches it, where the data are,
               who says so
offers.py      Offers for the terminal and for programs: a line each, how old they are, and what a price does not say
oom.py         An out-of-memory error explained, for the terminal and for programs
recipe.py      What was understood of a trainer's file, as `tunecast read` prints it
script_fit.py  What to change in a script so that it fits, in its own arguments, for the terminal
"""
