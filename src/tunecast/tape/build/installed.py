"""Packages whose kernels models take by themselves: what is taken for granted about them."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.machine import Machine

READ_FROM = (5, 17)


def tell_kernels(machine: Machine, packages: Sequence[str]) -> None:
    """Of the packages a model takes kernels of, which are taken to be installed."""
    found = [name for name in packages if name in machine.kernels]
    missing = [name for name in packages if name not in machine.kernels]
    if missing:
        flag = ",".join((*found, *missing))
        machine.assumptions[
            f"not installed: {' and '.join(missing)}; layers without attention run transformers' own code, which keeps "
            f"more and is slower (--kernels {flag} where they are)"
        ] = None
    if not found:
        return
    machine.assumptions[
        f"installed: {' and '.join(found)}, with whose kernels no step was timed; what Triton allocates and takes to "
        "compile and tune them, in the first step of a first run, is not counted"
    ] = None
    if machine.era.release < READ_FROM:
        machine.guesses["which kernels transformers takes before 5.17 was not read"] = None
