"""The only place where a number means a unit."""

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
HOUR_S = 3600


def gib(nbytes: float) -> str:
    """`74.85 GiB`, or MiB, KiB, B below one of the next."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{int(nbytes)} B"
