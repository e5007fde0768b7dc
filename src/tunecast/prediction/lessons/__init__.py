"""What measured runs say of a prediction: how it is corrected by them, and which are most like it.

correction.py  What runs that were measured and predicted say of the next prediction: a correction of its time, and
               how sure it is
nearest.py     The measured runs most like a job, and how far their predictions were off
table.py       Which part of the square of a step's deviation is whose
"""
