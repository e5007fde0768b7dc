"""Which changes are chosen: the fewest, the least harm, surely before likely, then the fastest. The engine adds up."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import LESS_MEMORY, Harm
from tunecast.errors import NotResolved, UsageError
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.planning.fit.fit import fit_job
from tunecast.planning.fit.search import Trials, harm_of, overrides_of, strongest
from tunecast.planning.fit.solution import Fit
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Time, Timing
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.units import GIB

pytestmark = pytest.mark.whole


def needs_gib(job: Job) -> float:
    """Weights 4 (2 in bfloat16, 1 in nf4), AdamW 8 (2 in 8 bits; nothing where it is paged or adapters are trained).

    For 1024 tokens 4 of activations (1 where they are recomputed) and 2 of logits (1 in chunks, none with liger).
    """
    weights = 1.0 if job.method == "qlora" else {"float32": 4.0, "bfloat16": 2.0}[job.weights_dtype]
    states = 0.0 if job.method != "full" or "paged" in job.optimizer else 2.0 if "8bit" in job.optimizer else 8.0
    rows = job.micro_batch * job.seq_len / 1024
    activations = rows * (1 if job.gradient_checkpointing else 4)
    logits = rows * (0 if "liger" in job.kernels else 1 if job.loss == "chunked" else 2)
    return weights + states + activations + logits


def seconds(job: Job) -> float:
    """Of a row: 1, 0.3 more to recompute, 0.1 less with liger, 0.1 more in chunks, 0.1 more each time one is begun."""
    row = 1 + 0.3 * job.gradient_checkpointing - 0.1 * ("liger" in job.kernels) + 0.1 * (job.loss == "chunked")
    return (row * job.micro_batch + 0.1) * job.grad_accum


def predicted(job: Job, **_: Any) -> Prediction:
    if job.loss == "chunked" and job.kernels:
        raise UsageError("loss: not with kernels", field="loss")
    if job.compile:
        raise UsageError("compile: not here", field="compile")
    parts = (Alloc(0, round(needs_gib(job) * GIB), Role.WEIGHTS, "model"), Begin(Phase.FORWARD, 0))
    held = job_on_card(job, gpu(job.hardware.gpu), Tape(parts, versions={"torch": "2.11.0"}))
    step_s = seconds(job)
    tokens_per_s = job.micro_batch * job.grad_accum * job.seq_len / step_s
    time = Time(step_s, step_s, step_s, tokens_per_s, tokens_per_s, None, "compute", {})
    return Prediction(job, resolve_model(job.model), held, clock=lambda _: Timing(time))


def job(capacity_gib: float, **fields: Any) -> Job:
    """4 + 8 + 4 + 2 = 18 GiB."""
    plain = {
        "model": "smollm2-135m",
        "weights_dtype": "float32",
        "micro_batch": 1,
        "seq_len": 1024,
        "gradient_checkpointing": False,
        **fields,
    }
    return job_from_dict({**plain, "hardware": {"capacity_bytes": int(capacity_gib * GIB), "gpu": "h200"}})


def fit(capacity_gib: float, allow: tuple[str, ...] = (), **fields: Any) -> Fit:
    return fit_job(job(capacity_gib, **fields), predicted, predicted, allow)


def chosen(found: Fit) -> dict[str, object]:
    assert found.chosen is not None
    return found.chosen.overrides


def test_one_change_that_is_enough() -> None:
    found = fit(16)
    assert chosen(found) == {"gradient_checkpointing": True}
    assert found.chosen is not None
    (effect,) = found.chosen.changes
    assert effect.frees_bytes == 3 * GIB
    assert effect.more_time_fraction == pytest.approx(1.4 / 1.1 - 1)
    assert found.chosen.room.surely
    assert not found.before.room.fits


def test_of_those_that_are_enough_the_fastest() -> None:
    found = fit(17)
    assert chosen(found) == {"kernels": ["liger"]}
    assert [other.overrides for other in found.others] == [{"gradient_checkpointing": True}]


def test_two_where_one_is_not_enough() -> None:
    found = fit(14)
    assert chosen(found) == {"gradient_checkpointing": True, "kernels": ["liger"]}
    assert not found.others, "in chunks it is 14, and no more than that is there: likely, not surely"
    assert found.chosen is not None
    assert [effect.frees_bytes for effect in found.chosen.changes] == [3 * GIB, 2 * GIB]
    assert found.chosen.harm is Harm.SAME


def test_rounding_where_mathematics_alone_do_not_do() -> None:
    found = fit(12.8)
    assert found.chosen is not None
    assert found.chosen.harm is Harm.ROUNDED
    assert chosen(found) == {"optimizer": "adamw_8bit"}
    assert found.chosen.quality[0].startswith("8-bit states")


def test_a_price_nobody_knows_comes_last() -> None:
    """paged_adamw_32bit alone would do (10 GiB), and keeps the mathematics; but what it costs in time is not known."""
    found = fit(12.8)
    assert "paged" not in str(chosen(found))
    # 4 + 2 + 1 with states of 8 bits, 5 with weights of 16 bits too: only pages are less
    only = fit(4.8)
    assert "paged" in str(chosen(only)["optimizer"])
    assert only.chosen is not None
    assert only.chosen.unpriced == ["its state moves over PCIe where the card is full: not priced"]


def test_a_smaller_micro_batch_is_no_smaller_than_it_has_to_be() -> None:
    """12 + 6 a row: four rows 36, two 24."""
    found = fit(26, micro_batch=4, kernels=["liger"], gradient_checkpointing=True, seq_len=6144)
    assert chosen(found) == {"micro_batch": 2, "grad_accum": 2}
    assert found.chosen is not None
    assert found.chosen.job.micro_batch * found.chosen.job.grad_accum == 4


def test_what_takes_less_time_than_the_smallest_set_is_shown_beside_it() -> None:
    """12 GiB and 6 a row, 4 with liger. Four rows are 36; one at a time 18, and slower; with liger two are 20."""
    assert not fit(20.5, micro_batch=2).quicker, "liger alone is enough, and the fastest"
    found = fit(21, micro_batch=4)
    assert chosen(found) == {"micro_batch": 1, "grad_accum": 4}
    assert found.chosen is not None and found.chosen.more_time_fraction is not None
    (quicker,) = found.quicker
    assert quicker.overrides == {"kernels": ["liger"], "micro_batch": 2, "grad_accum": 2}
    assert quicker.harm is Harm.SAME and quicker.room.surely
    assert quicker.more_time_fraction is not None and quicker.more_time_fraction < found.chosen.more_time_fraction


def test_other_training_only_where_nothing_else_fits() -> None:
    assert fit(12.8).chosen is not None
    assert [offer.overrides for offer in fit(12.8).offered][:2] == [{"method": "lora"}, {"method": "qlora"}]
    found = fit(2.2, optimizer="adafactor", weights_dtype="bfloat16", micro_batch=1)
    assert found.chosen is not None
    assert found.chosen.harm is Harm.OTHER
    assert chosen(found)["method"] == "qlora"
    assert not found.offered


def test_other_training_is_as_mild_as_what_is_harmless_lets_it_be() -> None:
    """1 of weights and 1 for 1024 tokens: rows of half the length, one at a time, are 5."""
    fields = {"method": "qlora", "kernels": ["liger"], "gradient_checkpointing": True, "optimizer": "adafactor"}
    found = fit(5.5, micro_batch=2, seq_len=8192, lora={"rank": 8}, **fields)
    assert chosen(found) == {"seq_len": 4096, "micro_batch": 1, "grad_accum": 2}
    assert found.forced


def test_what_is_allowed_is_chosen_like_any() -> None:
    """With 8 bits and two more changes it is 7; so it is in QLoRA, which is one."""
    assert len(chosen(fit(8))) == 3
    assert "method" not in chosen(fit(8))
    allowed = fit(8, allow=("method",))
    assert chosen(allowed) == {"method": "qlora"}
    assert not allowed.forced
    assert chosen(fit(14, allow=("method",))) == {"gradient_checkpointing": True, "kernels": ["liger"]}, "least harm"


def test_a_job_that_fits_closely_is_made_to_fit_surely() -> None:
    found = fit(18.01)
    assert found.before.room.fits
    assert not found.before.room.surely
    assert not found.faster
    assert found.chosen is not None
    assert found.chosen.room.surely


def test_a_job_that_fits_is_made_faster() -> None:
    found = fit(40, gradient_checkpointing=True, grad_accum=4)
    assert found.faster
    assert chosen(found) == {"gradient_checkpointing": False, "kernels": ["liger"], "micro_batch": 4, "grad_accum": 1}
    assert found.chosen is not None
    assert found.chosen.more_time_fraction == pytest.approx((0.9 * 4 + 0.1) / (1.4 * 4) - 1)
    assert all(
        effect.more_time_fraction is not None and effect.more_time_fraction < 0 for effect in found.chosen.changes
    )


def test_nothing_makes_it_faster() -> None:
    found = fit(40, kernels=["liger"])
    assert found.faster
    assert found.chosen is None
    assert found.fits


def test_nothing_makes_it_fit() -> None:
    found = fit(0.9)
    assert not found.fits
    assert found.would_do is not None
    needs = [each.needs_bytes for each in found.would_do.least_cards]
    assert needs == sorted(needs, reverse=True)
    assert needs[0] == 18 * GIB
    assert [each.harm for each in found.would_do.least_cards] == [Harm.SAME, Harm.ROUNDED, Harm.OTHER]
    least = found.would_do.least_cards[0].least_card
    assert least is not None
    assert least.memory_bytes >= 18 * GIB


def test_the_same_answer_every_time() -> None:
    assert [chosen(fit(13)) for _ in range(2)] == [chosen(fit(13))] * 2


def brute_force(of: Job, most: Harm, size: int) -> bool:
    """Whether any set of this size fits surely."""
    options = [each for each in strongest(of, LESS_MEMORY) if each.rung.harm <= most and each.rung.unpriced is None]
    for options_tried in combinations(options, size):
        if len({option.rung.group for option in options_tried}) == size:
            try:
                done = predicted(with_fields(of, overrides_of(options_tried)))
            except (UsageError, NotResolved):
                continue
            if done.on_card.room.surely:
                return True
    return False


@pytest.mark.parametrize("capacity_gib", [16.5, 15, 13, 11, 9, 7, 5.5])
def test_no_smaller_and_no_more_harmless_set_fits(capacity_gib: float) -> None:
    found = fit(capacity_gib, micro_batch=2)
    assert found.chosen is not None
    of, options = found.before.job, found.chosen.options
    assert needs_gib(found.chosen.job) < capacity_gib
    assert found.chosen.harm < Harm.OTHER
    assert not any(brute_force(of, Harm(harm), size) for harm in range(harm_of(options)) for size in range(1, 6))
    assert not any(brute_force(of, harm_of(options), size) for size in range(1, len(options)))


def test_each_job_is_asked_for_once() -> None:
    calls: list[Job] = []

    def counted(each: Job) -> Any:
        calls.append(each)
        return predicted(each)

    trials = Trials(job(10), counted)
    options = tuple(strongest(trials.job, LESS_MEMORY[:1]))
    assert [trials.fits(options) for _ in range(3)] == [False] * 3
    assert len(calls) == trials.asked == 1
