"""Questions that ask for many predictions: what to change, what differs, what fits at most, what was not stated.

changes.py        Changes to a job that need less memory, each tried: what it would save, and whether the job fits
                  then
compare.py        What differs between two jobs, and what each difference costs
every_card.py     A job's need against every card of the catalogue: what a memory bar shows while a slider moves
ladder.py         What people change in a job that is to need less memory, or less time: one ladder, from least harm
                  to most
largest.py        The most of something that still fits: searched by doubling and bisection over a question with a yes
                  or a no
most.py           The answer of `tunecast largest` (`tunecast.largest/1`): the most that fits a card, by method
script_ladder.py  What people change in a script that is to need less memory: the ladder of jobs, in the script's own
                  arguments
smallest_card.py  The smallest card of the catalogue a job completes on
suggestions.py    Jobs like the one that was predicted, tried for whoever reads the answer: changes that free memory,
                  and other values of what was not given
task_rungs.py     What people change in preference tuning, in rollouts and with images that are to need less memory:
                  rungs of the ladder that apply to some tasks alone
unstated.py       What a job does not say and was taken for it, and what another common value would change
oom/              An out-of-memory message, read back and explained
"""
