"""Price lists others keep: SkyPilot's catalogue and gpuhunt's. Read as what they are, text from a server nobody vouches
for: bounded in bytes and rows, every cell checked, and refused whole where it is not what was asked for.

gpuhunt.py   gpuhunt's feed: a ZIP of CSVs, one a provider, made daily by dstack
replies.py   JSON from a server that is not trusted
runpod.py    What is free at RunPod right now: its GraphQL, of which this query asks for no key
skypilot.py  SkyPilot's catalogue: a CSV a cloud, refreshed by its own jobs
vast.py      What is free at Vast.ai right now: its own search, which asks for no key
"""
