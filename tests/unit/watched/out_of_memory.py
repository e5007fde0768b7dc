"""A program without a Trainer that ends as its word says: `oom` on the card, `other`, or well."""

import sys


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def fail():
    raise OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.52 GiB of which 1.00 GiB is "
        "free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 21.00 "
        "GiB is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated."
    )


if __name__ == "__main__":
    try:
        fail()
    except RuntimeError:
        print("caught")
    if sys.argv[1] == "oom":
        fail()
    if sys.argv[1] == "other":
        raise RuntimeError("/home/alice is no data set")
