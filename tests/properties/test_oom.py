"""What holds for every log: a message is read as it was printed, and anything else is no message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunecast.advise.oom.advice import advice_for
from tunecast.advise.oom.message import filled, messages, short_bytes, the_message
from tunecast.units import GIB, KIB, MIB

sizes = st.integers(0, 512 * GIB)
words = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)


def printed(nbytes: int) -> str:
    """As c10/cuda/CUDACachingAllocator.cpp, `format_size`."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{nbytes} bytes"


def near(read: int | None, nbytes: int) -> bool:
    """Two decimals of the unit it was printed in."""
    return read is not None and abs(read - nbytes) <= 0.0051 * max(1, nbytes, KIB)


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    parts = {name: draw(sizes) for name in ("requested", "total", "free", "allocated", "unallocated", "process")}
    told = {name: printed(nbytes) for name, nbytes in parts.items()}
    others = "".join(
        f"Process {pid} has {printed(nbytes)} memory in use. "
        for pid, nbytes in draw(st.lists(st.tuples(st.integers(1, 2**22), sizes), max_size=3))
    )
    text = (
        f"CUDA out of memory. Tried to allocate {told['requested']}. GPU 0 has a total capacity of {told['total']} of "
        f"which {told['free']} is free. {others}Including non-PyTorch memory, this process has {told['process']} "
        f"memory in use. Of the allocated memory {told['allocated']} is allocated by PyTorch, and "
        f"{told['unallocated']} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large ..."
    )
    return text, parts


@given(texts(), words, words)
def test_a_message_is_read_as_it_was_printed(made: tuple[str, dict[str, int]], before: str, after: str) -> None:
    text, parts = made
    message, count = the_message(messages([f"{before}\n{text}\n{after}"]))
    assert message is not None
    assert count >= 1
    assert near(message.requested_bytes, parts["requested"])
    assert near(message.total_bytes, parts["total"])
    assert near(message.free_bytes, parts["free"])
    assert near(message.allocated_bytes, parts["allocated"])
    assert near(message.unallocated_bytes, parts["unallocated"])


@given(texts())
def test_the_parts_always_sum_to_the_card(made: tuple[str, dict[str, int]]) -> None:
    """Also where the figures contradict each other: nothing is negative, and there is always something to say."""
    message, _ = the_message(messages([made[0]]))
    assert message is not None
    filling = filled(message)
    assert filling is not None
    held = (filling.allocated_bytes + filling.unallocated_bytes, filling.outside_bytes, filling.others_bytes)
    assert min(*held, filling.free_bytes, filling.spilled_bytes) >= 0
    assert sum(held) + filling.free_bytes - filling.spilled_bytes == filling.total_bytes
    short = short_bytes(message)
    assert short is not None and short >= 0
    assert any(each.training for each in advice_for(message))


@given(st.lists(texts().map(lambda made: made[0]) | words, max_size=4), st.integers(1, 3000))
def test_where_a_log_is_cut_does_not_matter(parts: list[str], size: int) -> None:
    log = "\n".join(parts)
    pieces = [log[start : start + size] for start in range(0, len(log), size)]
    assert list(messages(pieces)) == list(messages([log]))


@given(st.text() | st.text("CUDA out of memory. Tried to allocate 0123456789 GiB(;)\n", max_size=400))
def test_any_text_is_read_without_an_error(log: str) -> None:
    for message in messages([log]):
        filled(message)
        assert advice_for(message)
