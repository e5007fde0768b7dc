"""One job or traced run as a page of HTML, with its script and style sheets.

advice.py    What to do next, for the page: the changes that help most, the command that finds more, and what was
             not given
card_bar.py  A card as one bar: what lies on it by role, where the card ends, and the range of what is needed
chart.py     The picture of `html`: areas of memory by role over the run, its phases and limits, and what the
             pointer tells
document.py  A page as one file: no server, no network, no library; and where it comes from, so that it can be
             made again
job.py       One page that shows a job's memory over its run: no server, no network, no library, nothing loaded
             from anywhere
markup.py    HTML that is escaped unless it was made here: what a script named cannot become markup
notebook.py  Values as a notebook shows them: the verdict, the main figures, the choices as a table. No script, and no
             style that reaches beyond the fragment
outside.py   What a run needs outside its step, for the page: host memory, disk, loading, saving, evaluation,
             resuming
time.py      How long a job takes, for the page: the same figures as `report/run/time.py`, with two bars of where
             the time goes
verdict.py   The top of a job's page: whether it fits, by how much, with which range, and the card as one bar
"""
