"""PyTorch's out-of-memory messages as people posted them, each with where it was found."""

from __future__ import annotations

import pytest

from tunecast.advise.oom.advice import advice_for
from tunecast.advise.oom.message import OomMessage, Process, filled, messages, parsed, short_bytes, the_message
from tunecast.units import GIB, KIB, MIB


def gib(number: float) -> int:
    return round(number * GIB)


def mib(number: float) -> int:
    return round(number * MIB)


# a Princeton help page on PyTorch of 2019 (torch 1.1)
TORCH_1_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 8.94 GiB (GPU 0; 15.90 GiB total capacity; 8.94 GiB already "
    "allocated; 6.34 GiB free; 0 bytes cached)\nsrun: error: tiger-i23g11: task 0: Exited with exit code 1"
)
# pytorch/pytorch#16417, the title
TORCH_1_0 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already "
    "allocated; 9.28 GiB free; 4.68 MiB cached)"
)
# haotian-liu/LLaVA#1152
TORCH_2_0 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 284.00 MiB (GPU 0; 31.75 GiB total capacity; "
    "27.12 GiB already allocated; 99.50 MiB free; 30.44 GiB reserved in total by PyTorch) If reserved memory is >> "
    "allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
    "and PYTORCH_CUDA_ALLOC_CONF\n 10%|████"
)
# kerrj/lerf#73: "capacty", as torch 2.1 wrote it
TORCH_2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacty of 23.65 "
    "GiB of which 1.66 GiB is free. Including non-PyTorch memory, this process has 20.81 GiB memory in use. Of the "
    "allocated memory 12.09 GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
)
# HiDream-ai/VAREdit#6
OTHER_PROCESS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 11.19 MiB is free. Process 2635308 has 62.69 GiB memory in use. Including non-PyTorch memory, this "
    "process has 16.54 GiB memory in use. Of the allocated memory 15.94 GiB is allocated by PyTorch, and 205.65 MiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
# vllm-project/vllm#15039: in a container, which sees itself as process 37008
IN_A_CONTAINER = (
    "(VllmWorkerProcess pid=486731) ERROR 03-19 10:55:18 [multiproc_worker_utils.py:242] torch.OutOfMemoryError: CUDA "
    "out of memory. Tried to allocate 128.00 MiB. GPU 2 has a total capacity of 79.33 GiB of which 16.00 MiB is free. "
    "Process 37008 has 79.29 GiB memory in use. Of the allocated memory 69.59 GiB is allocated by PyTorch, with 46.00 "
    "MiB allocated in private pools (e.g., CUDA Graphs), and 118.90 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
# a notebook in a public repository: a random forest on torch, torch 2.5
PRIVATE_POOLS = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 10.74 GiB. GPU 0 has a total capacity of 47.53 GiB of "
    "which 7.86 GiB is free. Process 471567 has 39.44 GiB memory in use. Of the allocated memory 20.52 GiB is "
    "allocated by PyTorch, with 12.03 GiB allocated in private pools (e.g., CUDA Graphs), and 18.59 GiB is reserved by "
    "PyTorch but unallocated."
)
# the tests of a public repository, which keep it verbatim
A_FRACTION = (
    "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 47.37 GiB of which 46.57 GiB is "
    "free. Including non-PyTorch memory, this process has 772.00 MiB memory in use. 800.55 MiB allowed; Of the "
    "allocated memory 245.48 MiB is allocated by PyTorch, and 16.52 MiB is reserved by PyTorch but unallocated."
)
# an experiment log in a public repository, broken into lines
IN_LINES = """\
```
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.
GPU 0 has a total capacity of 31.36 GiB of which 471.69 MiB is free.
Including non-PyTorch memory, this process has 16.63 GiB memory in use.
Process 19239 has 14.26 GiB memory in use.
Of the allocated memory 15.03 GiB is allocated by PyTorch, and 1.00 GiB
is reserved by PyTorch but unallocated.
```
"""
# a public log of an AMD MI250X
HIP = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 278.00 MiB. GPU 0 has a total capacity of 63.98 GiB "
    "of which 190.00 MiB is free. Of the allocated memory 59.51 GiB is allocated by PyTorch, and 3.95 GiB is "
    "reserved by PyTorch but unallocated."
)
# a ComfyUI report in a public repository, on Windows
CUDA_MALLOC_ASYNC = """\
torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)
Currently allocated     : 4.86 GiB
Requested               : 10.12 GiB
Device limit            : 24.00 GiB
Free (according to CUDA): 0 bytes
PyTorch limit (set by user-supplied memory fraction)
                        : 17179869184.00 GiB
This error means you ran out of memory on your GPU.
"""
# YingqianWang/iPASSR#9: Windows lends host memory, so more is allocated than the card has
BEYOND_THE_CARD = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.73 GiB (GPU 0; 8.00 GiB total capacity; "
    "17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch) If reserved memory is >>"
)
# LHRLAB/ChatKBQA#2
A30 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 23.50 GiB total capacity; "
    "23.16 GiB already allocated; 2.81 MiB free; 23.16 GiB reserved in total by PyTorch) If reserved memory is >>"
)
# a documentation page on fragmentation in a public repository
FRAGMENTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.15 GiB. GPU 0 has a total capacity of 39.56 GiB "
    "of which 6.80 GiB is free. Including non-PyTorch memory, this process has 36.61 GiB memory in use. Of the "
    "allocated memory 31.66 GiB is allocated by PyTorch, and 4.11 GiB is reserved by PyTorch but unallocated."
)
ALL = {
    name: text
    for name, text in list(globals().items())
    if isinstance(text, str) and name.isupper() and "memory" in text
}


def read(text: str) -> OomMessage:
    (message,) = messages([text])
    return message


def figures(message: OomMessage) -> tuple[int | None, ...]:
    return (
        *(message.requested_bytes, message.total_bytes, message.free_bytes),
        *(message.allocated_bytes, message.unallocated_bytes),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TORCH_1_1, (gib(8.94), gib(15.90), gib(6.34), gib(8.94), 0)),
        (TORCH_1_0, (mib(12.5), gib(10.92), gib(9.28), mib(8.57), mib(4.68))),
        (TORCH_2_0, (mib(284), gib(31.75), mib(99.5), gib(27.12), gib(30.44) - gib(27.12))),
        (TORCH_2_1, (gib(3), gib(23.65), gib(1.66), gib(12.09), gib(4.84))),
        (OTHER_PROCESS, (mib(148), gib(79.25), mib(11.19), gib(15.94), mib(205.65))),
        (IN_A_CONTAINER, (mib(128), gib(79.33), mib(16), gib(69.59), mib(118.9))),
        (PRIVATE_POOLS, (gib(10.74), gib(47.53), gib(7.86), gib(20.52), gib(18.59))),
        (A_FRACTION, (gib(8), gib(47.37), gib(46.57), mib(245.48), mib(16.52))),
        (IN_LINES, (gib(1.16), gib(31.36), mib(471.69), gib(15.03), gib(1))),
        (HIP, (mib(278), gib(63.98), mib(190), gib(59.51), gib(3.95))),
        (CUDA_MALLOC_ASYNC, (gib(10.12), gib(24), 0, gib(4.86), None)),
        (BEYOND_THE_CARD, (gib(10.73), gib(8), 0, gib(17.2), gib(19.15) - gib(17.2))),
        (A30, (mib(2), gib(23.5), mib(2.81), gib(23.16), 0)),
        (FRAGMENTED, (gib(3.15), gib(39.56), gib(6.8), gib(31.66), gib(4.11))),
    ],
)
def test_the_figures_of_every_form(text: str, expected: tuple[int | None, ...]) -> None:
    assert figures(read(text)) == expected


def test_which_card_and_which_processes() -> None:
    message = read(OTHER_PROCESS)
    assert (message.gpu, message.process_bytes, message.processes) == (0, gib(16.54), (Process(2635308, gib(62.69)),))
    assert read(IN_A_CONTAINER).gpu == 2
    assert read(PRIVATE_POOLS).private_bytes == gib(12.03)
    assert read(A_FRACTION).allowed_bytes == mib(800.55)
    assert read(CUDA_MALLOC_ASYNC).allowed_bytes is None, "2**64 bytes are no limit"


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_the_parts_sum_to_the_card(text: str) -> None:
    filling = filled(read(text))
    assert filling is not None
    parts = (
        *(filling.allocated_bytes, filling.unallocated_bytes, filling.outside_bytes),
        *(filling.others_bytes, filling.free_bytes),
    )
    assert min(parts) >= 0
    assert sum(parts) - filling.spilled_bytes == filling.total_bytes


def test_whose_memory_it_was() -> None:
    filling = filled(read(OTHER_PROCESS))
    assert filling is not None
    # 16.54 GiB of this process, of which PyTorch has 15.94 GiB + 205.65 MiB
    assert filling.outside_bytes == gib(16.54) - gib(15.94) - mib(205.65)
    assert filling.others_bytes == pytest.approx(gib(62.69), abs=10 * MIB)
    assert filling.others == (Process(2635308, gib(62.69)),)


def test_a_container_is_not_another_process() -> None:
    filling = filled(read(IN_A_CONTAINER))
    assert filling is not None
    assert filling.others == ()
    assert filling.outside_bytes == gib(79.29) - gib(69.59) - mib(118.9)
    assert filling.others_bytes < 32 * MIB  # what two decimals leave


def test_without_processes_only_the_sum_is_known() -> None:
    filling = filled(read(TORCH_2_0))
    assert filling is not None
    assert not filling.split
    assert filling.outside_bytes == gib(31.75) - mib(99.5) - gib(30.44)


def test_a_driver_that_cannot_say_is_not_believed() -> None:
    wsl = TORCH_2_1.replace("this process has 20.81 GiB", "this process has 17179869184.00 GiB")
    assert read(wsl).process_bytes is None
    assert read(TORCH_2_1.replace("this process has 20.81 GiB", "this process has 0 bytes")).process_bytes is None


def test_how_much_was_missing() -> None:
    assert short_bytes(read(TORCH_2_1)) == gib(3) - gib(1.66)
    assert short_bytes(read(FRAGMENTED)) == 0  # 6.80 GiB are free: the fraction or the driver refused
    # 800.55 MiB are allowed, 262 of them reserved
    assert short_bytes(read(A_FRACTION)) == gib(8) - (mib(800.55) - mib(245.48) - mib(16.52))


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:663",
        "RuntimeError: CUDA driver error: out of memory",
    ],
)
def test_a_message_without_figures(text: str) -> None:
    message = read(text)
    assert not message.has_figures
    assert filled(message) is None
    assert short_bytes(message) is None
    assert "no figures" in advice_for(message)[0].what


def test_a_message_that_was_cut_off() -> None:
    message = read("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 21.18 GiB already")
    assert (message.requested_bytes, message.total_bytes, message.allocated_bytes) == (gib(2), gib(23.69), None)
    assert filled(message) is None


def test_what_follows_a_message_does_not_count() -> None:
    message = read(TORCH_1_1 + "\n3.00 GiB reserved in total by PyTorch\nProcess 7 has 9.00 GiB memory in use")
    assert message.unallocated_bytes == 0
    assert message.processes == ()
    assert message.text.endswith("0 bytes cached)")


def test_nothing_is_found_where_nothing_is() -> None:
    for text in ("", "loss 2.3", "WARNING: out of memory? lower the batch size", "Killed (out of memory)"):
        assert list(messages([text])) == []
    assert the_message([]) == (None, 0)


def test_the_last_message_with_figures_is_explained() -> None:
    found = list(messages([f"{OTHER_PROCESS}\n{TORCH_2_1}\nRuntimeError: CUDA error: out of memory\n"]))
    assert len(found) == 3
    chosen, count = the_message(found)
    assert (chosen, count) == (found[1], 3)


@pytest.mark.parametrize("size", [1, 7, 100, 1999, 2000, 2001, 10_000])
def test_a_message_may_lie_across_pieces(size: int) -> None:
    log = "step 1\n" * 500 + OTHER_PROCESS + "\n" + "x" * 3000 + TORCH_2_1 + "\nend"
    pieces = [log[start : start + size] for start in range(0, len(log), size)]
    assert list(messages(pieces)) == list(messages([log]))
    assert len(list(messages(pieces))) == 2


def test_ranks_and_colours_are_read_through() -> None:
    text = IN_LINES.replace("\n", "\n[rank3]: ").replace("GPU 0", "\x1b[31mGPU 0\x1b[0m")
    assert figures(read(text)) == figures(read(IN_LINES))
    assert "\x1b" not in read(text).text


def test_sizes_in_every_unit() -> None:
    text = "CUDA out of memory. Tried to allocate 512 bytes (GPU 0; 2.00 TiB total capacity; 3.50 KiB already allocated"
    message = parsed(text)
    assert (message.requested_bytes, message.total_bytes, message.allocated_bytes) == (512, 2 * 2**40, 3584)
    assert message.allocated_bytes == 3.5 * KIB


# what to change


def told(text: str) -> list[str]:
    return [each.what for each in advice_for(read(text))]


def test_another_process_comes_first() -> None:
    first, second, *_ = advice_for(read(OTHER_PROCESS))
    assert first.what.startswith("other processes hold 62.7")
    assert "2635308 (62.69 GiB)" in first.what
    assert first.enough
    assert "--reserve 64" in first.how
    # 205.65 MiB in pieces would have held the 148 MiB too
    assert second.what.startswith("fragmentation: 205.65 MiB are cached")
    assert second.enough


def test_fragmentation_is_named_with_its_cure() -> None:
    first = advice_for(read(TORCH_2_1))[0]
    assert first.what.startswith("fragmentation: 4.84 GiB are cached in pieces")
    assert first.enough and first.frees_bytes == gib(4.84)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in first.how


def test_each_platform_is_answered_in_its_own_words() -> None:
    for word, others in (("HIP", ("nvidia-smi", "CUDA")), ("XPU", ("nvidia-smi", "rocm-smi", "CUDA", "HIP"))):
        message = read(TORCH_2_1.replace("CUDA out of memory", f"{word} out of memory"))
        words = " ".join(f"{each.what} {each.how}" for each in advice_for(message))
        assert message.platform.name == word
        assert message.platform.settings in words and message.platform.lists_processes.split()[0] in words
        assert not any(other in words for other in others), words
    bare = advice_for(read("HIP error: out of memory"))[0]
    assert "HIP itself ran out" in bare.what and "rocm-smi" in bare.how


def test_a_full_card_is_the_trainings_own() -> None:
    (only,) = advice_for(read(A30))
    assert only.training
    assert only.what == "the training itself holds 23.16 GiB, 99 % of the card"


def test_what_is_not_enough_comes_after_the_training() -> None:
    # 7.34 GiB are missing; 4.84 lie in pieces, 3.88 outside PyTorch, and 1.18 belong to no process
    message = read(TORCH_2_1.replace("Tried to allocate 3.00 GiB", "Tried to allocate 9.00 GiB"))
    ranked = advice_for(message)
    assert [each.training for each in ranked] == [True, False, False, False]
    assert not any(each.enough for each in ranked)


def test_a_limit_is_named() -> None:
    first = advice_for(read(A_FRACTION))[0]
    assert first.what == "a limit is set: this process may use 800.55 MiB of 47.37 GiB"
    assert first.enough


def test_graphs_are_named() -> None:
    assert any("12.03 GiB are in private pools" in what for what in told(PRIVATE_POOLS))


def test_memory_nobody_claims() -> None:
    assert any("this process or others hold 19.14 GiB outside PyTorch" in what for what in told(CUDA_MALLOC_ASYNC))


def test_room_that_was_there_is_said() -> None:
    assert "the card had room: 6.80 GiB free for a request of 3.15 GiB" in told(FRAGMENTED)


def test_host_memory_lent_by_windows_is_said() -> None:
    assert any("11.15 GiB of it are in host memory" in what for what in told(BEYOND_THE_CARD))
