"""Layers over several cards: which of them each card has, which card is the fullest, and what its tape then is."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.records import replace
from tunecast.tape.build.job_runs import fold_job
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.layers import (
    ENDS,
    CardShare,
    Outline,
    TreePiece,
    candidates,
    from_layer,
    held,
    last_stage,
    outline,
    split,
    worth_asking,
)
from tunecast.tape.build.stacks import program_of
from tunecast.tape.build.stacks.transformers import model
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Phase, Role, Tape

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 10,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
LAYER = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
LAYER_70B = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
LAYER_8B = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096


def job(**changes: Any) -> Any:
    given = {"model": "llama-3.2-1b", "method": "full", "seq_len": 128, "micro_batch": 1, "weights_dtype": "bfloat16"}
    return job_from_dict({**given, "hardware": {"gpus": 2}, "parallel": {"layers": 2}, **changes})


def spread(cards: int, **changes: Any) -> Any:
    return job(hardware={"gpus": cards}, parallel={"layers": cards}, **changes)


def of_bytes(embedding: int, layer: int, layers: int, head: int) -> Outline:
    """A model of so many bytes; a head without is the embedding."""
    names = tuple(f"model.layers.{number}" for number in range(layers))
    listed = TreePiece("model.layers", layer * layers, tuple(TreePiece(name, layer) for name in names))
    inside = (TreePiece("model.embed", embedding), listed, TreePiece("model.norm", 0))
    body = TreePiece("model", embedding + layer * layers, inside)
    return Outline((body, TreePiece("head", head)), names, "model.embed", "head", not head, (body.nbytes + head) // 100)


def counts(cards: tuple[CardShare, ...]) -> list[int]:
    return [len(card.layers) for card in cards]


def test_cards_take_a_share_and_a_quarter_more_than_a_layer() -> None:
    # 4 + 10 x 2 + 4 = 28 bytes; a share of 14, and 2.5 more, cut to 2: 16. The first leaves 4 for the head: 4 and 4
    # layers. The last has what is left.
    two = split(of_bytes(4, 2, 10, 4), 2)
    assert counts(two) == [4, 6]
    assert [(card.embedding, card.norm, card.head) for card in two] == [(True, False, False), (False, True, True)]
    # Three cards: 28 // 3 + 2 = 11. The first: 7, so 4 and 1 layer; the second 5 layers; the last 4.
    assert counts(split(of_bytes(4, 2, 10, 4), 3)) == [1, 5, 4]
    # Tied: 24 bytes, a share of 12 + 2 = 14. The first leaves a layer's 2: 4 and 4 layers, and the head.
    tied = split(of_bytes(4, 2, 10, 0), 2)
    assert counts(tied) == [4, 6]
    assert [(card.embedding, card.norm, card.head) for card in tied] == [(True, False, True), (False, True, False)]
    # Quantised as it is loaded: nine tenths of 16 are 14.4, less 4 for the head: 4 and 3 layers.
    assert counts(split(of_bytes(4, 2, 10, 4), 2, quantizes=True)) == [3, 7]


def test_a_leaf_larger_than_a_layer_is_what_shares_are_rounded_by() -> None:
    """transformers 5.18. 28 bytes: a share of 14 and 1.25 x 4, 19; the first leaves 4 for the head: 4 and 5 layers."""
    assert counts(split(of_bytes(4, 2, 10, 4)._replace(leaf_bytes=4), 2)) == [5, 5]


@pytest.mark.parametrize(("release", "layers"), [("5.17.0", 1), ("5.18.0", 5)])
def test_the_release_decides_how_shares_are_rounded(release: str, layers: int) -> None:
    """An embedding of 263 million weights and 16 layers of 61, tied: 309 a card. With 1.25 layers more 385, with 1.25
    embeddings 637; the first leaves a layer's."""
    asked = spread(4, transformers_version=release)
    first = candidates(asked, resolve_model("llama-3.2-1b").raw, program_of(asked).model)[0]
    assert first["num_hidden_layers"] == layers


def test_an_embedding_larger_than_a_share_leaves_cards_empty() -> None:
    # 20 + 4 x 1 = 24 bytes; 6 + 1 a card: the embedding fits none but the last, and all that follows comes after it.
    assert split(of_bytes(20, 1, 4, 0), 4) == (CardShare((0, 1, 2, 3), True, True, True, 24),)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "mixtral-8x7b"])
@pytest.mark.parametrize("cards", [2, 3, 4, 8])
def test_cards_together_hold_the_model(name: str, cards: int) -> None:
    made = model(Machine(Card()), resolve_model(name).raw)
    made.tie()
    every = split(outline(made, "float32"), cards)
    buffers = 4 * sum(t.numel() for m in made.modules() for t in m.own.values()) - 4 * sum(
        p.numel() for p in made.parameters()
    )
    weights = 4 * sum(p.numel() for p in made.parameters())
    assert weights <= sum(card.nbytes for card in every) <= weights + buffers
    assert [number for card in every for number in card.layers] == list(range(len(list(made.layers()))))
    assert [sum(getattr(card, end) for card in every) for end in ("embedding", "norm", "head")] == [1, 1, 1]


def test_seventy_billion_on_eight_cards() -> None:
    """The fullest is one in between: 11 of 80 layers; weights, gradients and Adam's two are in float32."""
    asked = spread(8, model="llama-3.1-70b", weights_dtype="float32", autocast=None)
    weights = 4 * 11 * LAYER_70B
    run = predict(asked).on_card.unlimited
    assert weights <= run.model_bytes <= weights + 2**20
    assert 4 * weights < run.allocated_bytes < 4.1 * weights
    whole = 4 * (80 * LAYER_70B + 2 * 128256 * 8192 + 8192)
    assert run.model_bytes > whole / 8


def test_eight_billion_on_two_cards() -> None:
    """The fullest is the last: 18 of 32 layers, the norm and the head. Since transformers 5.18 it is even."""
    job = spread(2, model="llama-3.1-8b", weights_dtype="float32", autocast=None, transformers_version="5.17.0")
    run = predict(job).on_card.unlimited
    weights = 4 * (18 * LAYER_8B + 4096 + 128256 * 4096)
    assert weights <= run.model_bytes <= weights + 2**20
    assert run.allocated_bytes > 4 * weights
    newer = predict(replace(job, transformers_version="5.18.0")).on_card.unlimited
    even = 4 * (16 * LAYER_8B + 4096 + 128256 * 4096)
    assert even <= newer.model_bytes <= even + 2**20


def weights_of(tape: Tape) -> dict[str, int]:
    """Bytes of weights that the optimizer has a state for, by module: half a state's."""
    found: dict[str, int] = {}
    for event in tape.events:
        if isinstance(event, Alloc) and event.role is Role.OPTIMIZER and event.nbytes > 4:
            found[event.module] = found.get(event.module, 0) + event.nbytes // 2
    return found


def test_each_kind_of_card_has_its_own_ends() -> None:
    # (256 000 + 10 x 655 872 + 256 + 256 000) x 2 bytes over three cards: 3 layers, 4, 3
    cards = candidates(spread(3), CONFIG, model)
    assert [(card["num_hidden_layers"], card[ENDS]) for card in cards] == [
        (3, [True, False, False]), (3, [False, True, True]), (4, [False, False, False]),
    ]  # fmt: skip


def test_the_fullest_card_is_told() -> None:
    asked = spread(3)
    folded = fold_job(asked, CONFIG, Card())
    weights = [e.nbytes for e in folded.make_tape().events if isinstance(e, Alloc) and e.role is Role.WEIGHTS]
    assert sum(weights) >= 2 * 4 * LAYER  # of its four layers, and what loading brings and lets go of
    # Rows of many tokens of a large vocabulary: the logits outweigh a layer, and the head's card is the fullest.
    large = {**CONFIG, "vocab_size": 8000}
    long = spread(3, seq_len=512, micro_batch=8, gradient_checkpointing=True)
    head = next(card for card in candidates(long, large, model) if card[ENDS][2])
    alone = fold_job(long, large, Card())
    logits = 8 * 512 * 8000 * 4
    assert alone.program.most_alive_bytes > 2 * logits
    assert any(e.nbytes == logits for e in alone.make_tape().events if isinstance(e, Alloc))
    assert head["num_hidden_layers"] < 10


def test_a_card_in_between_trains_its_layers_alone() -> None:
    tape = fold_job(spread(3), CONFIG, Card()).make_tape()
    states = weights_of(tape)
    assert states
    assert not any("embed" in name or (name.endswith("norm") and "layers" not in name) for name in states)
    # beside its four layers one row of 256 stands in the head's place
    assert sum(states.values()) == 2 * (4 * LAYER + 256)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_card_keeps_no_end_that_is_anothers(method: str) -> None:
    """Of three cards the fullest has four layers, one row in the head's place, and 32 frequencies twice."""
    rows = fold_job(spread(3, method=method), CONFIG, Card()).make_tape().events
    alive: dict[int, Alloc] = {}
    for event in rows:
        if isinstance(event, Alloc) and event.role is Role.WEIGHTS:
            alive[event.block] = event
        elif isinstance(event, Free):
            alive.pop(event.block, None)
        elif isinstance(event, Begin) and event.phase is not Phase.LOAD:
            break
    assert sum(event.nbytes for event in alive.values()) == 2 * (4 * LAYER + 256) + 2 * 32 * 4


def test_later_cards_have_later_layers() -> None:
    kinds = ["dense", "dense", "sparse", "sparse"]
    later = from_layer({"num_hidden_layers": 4, "layer_types": kinds, "first_k_dense_replace": 2}, 1)
    assert (later["layer_types"], later["first_k_dense_replace"]) == (kinds[1:], 1)
    nested = from_layer({"text_config": {"first_k_dense_replace": 2}}, 3)
    assert nested["text_config"]["first_k_dense_replace"] == 0


def test_of_cards_in_between_the_heaviest_is_asked() -> None:
    first, last = CardShare((0,), True, False, False, 9), CardShare((5,), False, True, True, 9)
    light, heavy = CardShare((1,), False, False, False, 2), CardShare((2, 3), False, False, False, 4)
    assert worth_asking((first, light, heavy, last)) == [first, last, heavy]


def test_cards_and_layers_must_agree() -> None:
    with pytest.raises(TunecastError, match=r"hardware\.gpus 2"):
        predict({"model": "llama-3.2-1b", "parallel": {"layers": 2}, "hardware": {"gpus": 4}})
    with pytest.raises(TunecastError, match="10 layers for 16"):
        held(spread(16), CONFIG, model)


def test_one_card_works_at_a_time() -> None:
    """The time is that of all layers, whatever the cards."""
    given = {"model": "llama-3.2-1b", "method": "lora", "seq_len": 512, "micro_batch": 1}
    alone = predict(given)
    spread = predict({**given, "parallel": {"layers": 2}, "hardware": {"gpus": 2}})
    assert alone.time is not None and spread.time is not None
    assert spread.time.step_s == alone.time.step_s
    assert spread.memory.allocated_bytes < alone.memory.allocated_bytes


def stages(stack: str, **changes: Any) -> Any:
    dtype = "float32" if stack == "torchtitan" else "bfloat16"
    parallel = {"pipeline": 2, "data": "fsdp" if stack == "torchtitan" else "zero1"}
    given = {"stack": stack, "weights_dtype": dtype, "autocast": None, "gradient_checkpointing": True}
    return job(**{**given, "hardware": {"gpus": 2}, "parallel": parallel, "seq_len": 512, **changes})


@pytest.mark.whole
@pytest.mark.parametrize("stack", ["torchtitan", "megatron"])
def test_a_pipelines_last_stage_has_the_head(stack: str) -> None:
    asked = stages(stack)
    first, last = candidates(asked, CONFIG, program_of(asked).model)
    assert ENDS not in first and last[ENDS] == [False, True, True]
    assert (first["num_hidden_layers"], last["num_hidden_layers"]) == (5, 5)
    # One micro-batch: none waits at the first stage, and the logits of 512 x 20 096 make the last the fullest.
    large = {**CONFIG, "vocab_size": 20_096}
    width = 4 if stack == "torchtitan" else 2
    tape = fold_job(asked, large, Card()).make_tape()
    assert any(event.nbytes == 512 * 20_096 * width for event in tape.events if isinstance(event, Alloc))
    # Many, all of whose activations are kept, and a small vocabulary: the first.
    small = {**CONFIG, "vocab_size": 1408}
    many = stages(stack, grad_accum=4, micro_batch=16, gradient_checkpointing=False)
    tape = fold_job(many, small, Card()).make_tape()
    assert not any(event.nbytes == 16 * 512 * 1408 * width for event in tape.events if isinstance(event, Alloc))


@pytest.mark.whole
def test_torchtitan_kept_the_logits_of_all_micro_batches() -> None:
    """Until 0.2.1, and put them together once more: four micro-batches more are 4 + 4 times their logits more."""
    large = {**CONFIG, "vocab_size": 20_000}
    logits = 512 * 20_000 * 4

    def most(micro_batches: int, version: str) -> int:
        asked = stages("torchtitan", grad_accum=micro_batches, stack_version=version)
        return fold_job(asked, large, Card()).program.most_alive_bytes

    old, new = (most(12, version) - most(8, version) for version in ("2025.11", "2025.12"))
    assert old - new == pytest.approx(2 * 4 * logits, rel=0.01)


def test_ends_of_a_pipeline_are_as_much_as_layers_to_torchtitan() -> None:
    # 10 + 2 over 5 stages: 2 each, of which the head is one; to Megatron 10 over 5
    five = {"pipeline": 5, "data": "fsdp"}
    asked = stages("torchtitan", parallel=five, hardware={"gpus": 5})
    assert last_stage(asked, CONFIG)["num_hidden_layers"] == 1
    asked = stages("megatron", parallel=five | {"data": "zero1"}, hardware={"gpus": 5})
    assert last_stage(asked, CONFIG)["num_hidden_layers"] == 2
