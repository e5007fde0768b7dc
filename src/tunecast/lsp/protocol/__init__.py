"""The language server's side of its client: the only place that imports pygls.

server.py  The server on stdin and stdout: what a client sends, and what is shown of it, in the words of the protocol
"""
