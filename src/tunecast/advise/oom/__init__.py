"""An out-of-memory message, read back and explained.

advice.py       What to change after an out-of-memory error, the most effective first. Pure: a message in
explanation.py  The answer of `tunecast explain-oom` (`tunecast.oom/1`): what filled the card, what to change, the job
                beside it
job.py          An out-of-memory message beside the prediction of the job that is said to have run: are they of one
                run, and would what was wasted have been enough for the whole job?
message.py      PyTorch's out-of-memory message, read back: which request failed, and what filled the card. Pure: text
                in
"""
