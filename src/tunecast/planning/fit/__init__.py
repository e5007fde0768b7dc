"""The smallest change of a job that makes it fit, or fit and take less time.

bounds.py    What no change of a set can help: weights, gradients and optimizer state that are more than the card has
fit.py       `tunecast fit`: the smallest changes, least harm first, after which a job fits its card; or what makes it
             faster
hardware.py  Other hardware on which a job fits without other training: more cards of its kind in one machine, or a
             larger card
patch.py     A job's file with other values: only what changes is touched, so that comments, order and quotes stay
script.py    `tunecast fit -- train.py`: the smallest changes to a script's own arguments, least harm first, after
             which it fits
search.py    The smallest sets of changes after which a job fits. Memory only: what is found is then predicted in full
             (`fit.py`)
solution.py  The answer of `tunecast fit` (`tunecast.fit/1`): the job as it is, sets of changes, other hardware
"""
