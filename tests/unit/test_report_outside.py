"""The section of the report about what lies outside the step."""

from __future__ import annotations

from dataclasses import replace

from tunecast.prediction.outside.evaluation import Evaluation
from tunecast.prediction.outside.loading import Loading
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.outside.saving import Disk, Resuming, Saving
from tunecast.report.draw.text import Terminal
from tunecast.report.run.outside import host_text, outside_lines, outside_text, outside_warnings
from tunecast.report.run.wording import FIELDS, FLAGS
from tunecast.units import GIB, MIB

EVALUATION = Evaluation(8, 1024, 4 * GIB, 20 * GIB, 0, None, -2 * GIB)
SAID = Outside(
    loading=Loading(GIB, 8 * GIB, 9 * GIB, 10 * GIB, 9 * GIB),
    saving=Saving(8 * GIB, 512),
    disk=Disk(8 * GIB, 16 * GIB, 0, saves=3, kept=3, most=3),
    evaluate=lambda: EVALUATION,
    resuming=Resuming(16 * GIB, 8 * GIB, 3 * MIB, 5 * MIB),
    process_bytes=GIB,
    training_process_bytes=2 * GIB,
)


def line(start: str, lines: list[str]) -> list[str]:
    return next(line.split() for line in lines if line.strip().startswith(start))


def test_host_figures_hold_the_process() -> None:
    lines = outside_lines(SAID)
    assert line("loading", lines)[1:] == ["2.00", "GiB", "8.00", "GiB", "10.00", "GiB"]
    assert line("saving", lines)[1:] == ["10.00", "GiB"]  # half a KiB on the card is not told
    assert line("resuming", lines)[1:7] == ["17.00", "GiB", "8.00", "GiB", "+3.00", "MiB"]
    assert "resuming: the card holds 5.00 MiB more than before" in outside_text(SAID)


def test_the_most_of_all_phases() -> None:
    assert SAID.host_bytes == 17 * GIB
    told = outside_text(SAID)
    assert "host memory: 17.00 GiB\n" in told  # resuming; loading with its mapped file is less
    mapped = replace(SAID, loading=replace(SAID.loading, host_mapped_bytes=30 * GIB))
    assert "17.00 GiB, 32.00 GiB counting mapped pages" in outside_text(mapped)


def test_a_machine_of_several_processes_comes_first() -> None:
    told = outside_text(replace(SAID, machine_ram_bytes=130 * GIB), Terminal(width=200))
    assert "host memory: 130.00 GiB per machine, all its processes together; the first has 17.00 GiB" in told
    assert "host, first process" in told
    alone = outside_text(replace(SAID, machine_ram_bytes=17 * GIB))
    assert "host memory: 17.00 GiB" in alone and "first" not in alone


def test_evaluation_is_compared_with_training() -> None:
    assert "evaluation: 8 x 1,024 tokens, 2.00 GiB less than training\n" in outside_text(SAID)
    more = replace(SAID, evaluate=lambda: replace(EVALUATION, above_training_bytes=GIB, cache_growth_bytes=3 * GIB))
    assert "1.00 GiB more than training; reserved grows by 3.00 GiB" in outside_text(more)
    alone = replace(SAID, evaluate=lambda: replace(EVALUATION, above_training_bytes=None))
    assert "training" not in outside_text(alone)


def test_disk_by_the_number_of_checkpoints() -> None:
    told = outside_text(SAID, Terminal(width=200))
    assert (
        "checkpoint: weights 8.00 GiB, optimizer 16.00 GiB; 24.00 GiB of disk per checkpoint (3 kept: 72.00 GiB)"
        in told
    )
    once = replace(SAID, disk=replace(SAID.disk, saves=1, kept=1, most=1))
    assert outside_text(once).endswith(" (one written)")
    unknown = replace(SAID, disk=replace(SAID.disk, saves=None, kept=None, most=None))
    assert "per checkpoint (all kept)" in outside_text(unknown, Terminal(width=200))


def test_what_the_machine_must_have_in_one_paragraph() -> None:
    told = host_text(SAID, "needs 17.00 GiB of RAM, 1 CPU core", Terminal(width=200), links=["links: slow"])
    assert told.splitlines() == [
        "Host: needs 17.00 GiB of RAM, 1 CPU core, 24.00 GiB of disk per checkpoint (3 kept: 72.00 GiB)",
        "  links: slow",
    ]
    assert host_text(None, "") == ""


def test_what_does_not_fit_says_what_to_change() -> None:
    """Evaluation: 16 GiB stay, 4 come with 8 rows. 1 GiB for them is 2 rows; in 8 GiB not even the weights lie."""
    assert outside_warnings(SAID, 20 * GIB, evaluates=True, wording=FLAGS) == []
    assert outside_warnings(SAID, 17 * GIB, evaluates=True, wording=FLAGS) == [
        "evaluation runs out of memory: 8 x 1,024 tokens take 20.00 GiB of 17.00 GiB; --eval-batch 2 fits"
    ]
    [told] = outside_warnings(SAID, 17 * GIB, evaluates=False, wording=FIELDS)
    assert told.startswith("evaluation is off; if you evaluate, it runs out") and told.endswith(
        "run.eval_batch: 2 fits"
    )
    loading, evaluation = outside_warnings(SAID, 8 * GIB, evaluates=True, wording=FLAGS)
    assert loading == "loading does not fit: it takes 9.00 GiB of the 8.00 GiB PyTorch can use"
    assert evaluation.endswith("no batch is small enough")
    assert outside_warnings(replace(SAID, in_parts=True), 8 * GIB, evaluates=True, wording=FLAGS) == []


def test_lines_keep_to_the_terminal_and_colours_are_asked_for() -> None:
    assert max(map(len, outside_lines(SAID, Terminal(width=72)))) <= 72
    assert "\x1b" not in outside_text(SAID)
    assert "\x1b[1mOutside the step" in outside_text(SAID, Terminal(colour=True))
