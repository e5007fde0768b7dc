"""What measured runs teach: so far, what the user's own card can do (`calibrate.py`)."""
