"""The server itself: the only place that imports Starlette and uvicorn.

app.py     The application: every request is looked at before anything is done, and every answer has the same headers
bodies.py  What a client sends, as far as the server itself looks at it: its kind, its size, and that it arrives
pages.py   The page's own files
server.py  Starts the server: its socket, its folder, its workers; and ends them
slow.py    Clients that never finish what they begin: headers that arrive a byte at a time, connections nobody uses
"""
