"""Training data of any size: which files it is, what their rows hold, how many tokens that is.

arrow.py       The rows of Parquet and Arrow files, a batch at a time, by the package pyarrow
characters.py  What kind of characters a text has, and how many tokens they make where no tokenizer is at hand
columns.py     What of a row is trained on: which format its columns tell, and its text
files.py       Which files a data set is: one that is named, or those of a folder, the training split first
lines.py       The lines of a file of any size, compressed or not: a few MiB at a time, each line with an end
rows.py        The rows of a file, one after another, and what is wrong with those that are none: JSON Lines, JSON,
               CSV, text
scan.py        A data set of any size, read once: how many samples have which length, and what could not be counted
tokenizer.py   How many tokens a sample has: by the model's own tokenizer where there is one, else by its characters
"""
