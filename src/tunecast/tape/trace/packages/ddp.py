from __future__ import annotations
def install(recorder): pass
