"""`tunecast serve`: the page and its HTTP API, on this machine.

safety.py  Whom the server answers: the page it served itself, and programs that say where they ask
api/       What may be asked over HTTP
asking/    What a worker is asked, and what it answers
http/      The server itself: the only place that imports Starlette and uvicorn
workers/   Processes that do the work
"""
