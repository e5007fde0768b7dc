"""Whether the store of runs loses anything: writers that are killed, a disk that is full, a server that goes away."""
