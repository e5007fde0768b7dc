"""What every report is drawn with: text, columns, bars, and the plain values they show.

adapters.py  What a job's adapters are, in a few words: `rank 16 on q_proj, v_proj`
bars.py      Memory as one stacked bar of letters: readable without colour, in ASCII, and in any width
columns.py   Columns of text: names to the left, numbers to the right, as wide as they need to be
figures.py   What a report shows, as plain values: text and page draw the same ones, and tests make them by hand
job_yaml.py  A job as its file would have it, without what is default: for people who want to run it again
markdown.py  Markdown that stays text, for GitHub and its like
moments.py   Memory over a run, as plain values
text.py      What every text for the terminal is made of: the terminal itself, sections, sentences, tables. Pure:
             strings out
"""
