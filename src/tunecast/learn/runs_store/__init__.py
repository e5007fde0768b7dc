"""Where measured runs are kept: a file of SQLite, or a PostgreSQL server, through the same statements.

exchange.py  Runs as JSON Lines: one record a line, written and read anywhere
place.py     Where runs are kept: a file of SQLite, or a PostgreSQL server that a team shares
rows.py      A run as one row: what lists show, filter and count, and how near the prediction was
schema.py    The tables, and how an older store becomes a newer one: forward only, each step in one transaction
session.py   A connection to SQLite or PostgreSQL, behind four words: execute, transaction, close, and what went wrong
spool.py     Records that wait for a server that is away: a file each, beside the other data of tunecast, delivered
             later
store.py     The store of measured runs: added, listed, read, forgotten
"""
