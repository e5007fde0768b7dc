"""Processes that do the work.

confined.py  What a worker process may touch of its machine: the package, Python itself, its own folder, and no
             network
frames.py    How the server and its worker processes talk: a byte that says what comes, its length, and JSON
nursery.py   The process that workers are forked from: everything is loaded in it, and one small job was predicted
pool.py      The server's side of its workers: who is free, who waits, and what ends when a client goes away
"""
