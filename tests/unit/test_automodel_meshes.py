"""NeMo Automodel over cards that share layers, rows or experts: what a rank has and sends can be counted on paper."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tunecast
from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.stacks.automodel.pipeline import under_way
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Role, Tape

LAYERS, EXPERTS, HIDDEN, INNER, TOKENS = 2, 8, 64, 48, 256
SPARSE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INNER, "intermediate_size": 160,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320,
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DENSE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 160, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    **DENSE, "model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
ATTENTION = HIDDEN * 16 * (4 + 2 + 2) + 4 * 16 * HIDDEN
"""Weights of q, k, v and o."""


def built(config: dict[str, Any], parallel: dict[str, Any], steps: int = 2, **more: Any) -> Tape:
    job = {
        "model": "m", "stack": "automodel", "seq_len": TOKENS, "micro_batch": 1, "weights_dtype": "bfloat16",
        "hardware": {"gpus": 8}, "parallel": {"data": "fsdp", **parallel}, **more,
    }  # fmt: skip
    return build(fill_in(job_from_dict(job), config), config, [TOKENS] * steps, Card())


def sent(tape: Tape, group: str) -> Counter[str]:
    return Counter(event.name for event in tape.events if isinstance(event, Op) and event.group == group)


def made(tape: Tape, role: Role) -> list[int]:
    return [event.nbytes for event in tape.events if isinstance(event, Alloc) and event.role is role]


class TestExperts:
    def test_each_card_has_its_own(self) -> None:
        """Eight experts on eight cards, outside FSDP: whole, in their own dtype, two matrices a layer."""
        weights = made(built(SPARSE, {"expert": 8}), Role.WEIGHTS)
        assert weights.count(2 * HIDDEN * INNER * 2) == LAYERS
        assert weights.count(HIDDEN * INNER * 2) == LAYERS

    def test_those_that_several_have_are_cut_by_columns(self) -> None:
        """Two on each of four cards, each pair of cards half of their columns."""
        weights = made(built(SPARSE, {"expert": 4}), Role.WEIGHTS)
        assert weights.count(2 * 2 * HIDDEN * INNER * 2 // 2) >= LAYERS

    def test_rows_go_to_them_and_come_back(self) -> None:
        """There and back, a layer and pass. Recomputed they go once more: all is there again before they come back."""
        assert sent(built(SPARSE, {"expert": 8}, steps=1), "expert") == {"all_to_all": LAYERS * 4}
        recomputed = built(SPARSE, {"expert": 8}, steps=1, gradient_checkpointing=True)
        assert sent(recomputed, "expert") == {"all_to_all": LAYERS * 5}

    def test_weights_stay_whole_unless_told_otherwise(self) -> None:
        """Gathered once a layer and pass where they are given back, else once a step and unit."""
        kept = sent(built(SPARSE, {"expert": 8}, steps=1), "shard")["all_gather"]
        given_back = sent(built(SPARSE, {"expert": 8, "reshard_after_forward": True}, steps=1), "shard")["all_gather"]
        assert given_back >= kept + LAYERS

    def test_adapters_by_a_pattern(self) -> None:
        """`*` means experts too: of each of a card's, two matrices for each of its two."""
        lora = {"rank": 4, "targets": ["*"]}
        adapters = made(built(SPARSE, {"expert": 8}, method="lora", lora=lora), Role.ADAPTERS)
        for width in (HIDDEN, 2 * INNER, INNER):
            assert adapters.count(width * 4 * 2) >= LAYERS
        plain = made(built(SPARSE, {"expert": 8}, method="lora", lora={"rank": 4}), Role.ADAPTERS)
        assert len(adapters) == len(plain) + 4 * LAYERS + 2 * 2  # and the head's two, each whole before it is cut

    @pytest.mark.parametrize(("config", "ranks"), [(DENSE, 2), (SPARSE | {"num_experts": 6}, 4)])
    def test_what_cannot_be_split_is_refused(self, config: dict[str, Any], ranks: int) -> None:
        with pytest.raises(TunecastError, match=r"parallel\.expert"):
            built(config, {"expert": ranks})


class TestTensor:
    def test_a_rank_has_half_of_every_matrix(self) -> None:
        """And all of the norms. Two cards, so that nothing is left for FSDP to cut."""
        weights = made(built(DENSE, {"tensor": 2}, hardware={"gpus": 2}), Role.WEIGHTS)
        matrices = 2 * 320 * HIDDEN + LAYERS * (ATTENTION + 3 * HIDDEN * 160)
        norms = (2 * LAYERS + 1) * HIDDEN
        frequencies = 2 * 8 * 4
        assert sum(weights) == 2 * (matrices // 2 + norms) + frequencies

    @pytest.mark.parametrize("sequence", [False, True])
    def test_what_is_summed(self, sequence: bool) -> None:
        """Without splitting tokens: forward the embedding and two layers' ends each; backward what enters q, k, v,
        gate, up, and the head."""
        tape = built(DENSE, {"tensor": 2, "sequence_parallel": sequence}, steps=1)
        names = sent(tape, "tensor")
        if sequence:
            assert names["reduce_scatter"] > 0 and names["all_reduce"] == 0
        else:
            assert names["all_reduce"] == (1 + 2 * LAYERS) + (5 * LAYERS + 1)

    def test_linear_attention_is_whole(self) -> None:
        """Its gates z, as many as values, and its output; of gate, up and down each card has half."""
        weights = made(built(LINEAR, {"tensor": 2}, hardware={"gpus": 2}), Role.WEIGHTS)
        assert weights.count(HIDDEN * 4 * 16 * 2) >= 2
        assert weights.count(HIDDEN * 160 * 2 // 2) == 3 * LAYERS

    def test_key_heads_that_do_not_divide(self) -> None:
        with pytest.raises(TunecastError, match="key heads"):
            built(DENSE, {"tensor": 4})

    def test_adapters_of_split_layers_are_plain(self) -> None:
        lora = {"rank": 4, "targets": ["*_proj"]}
        tape = built(DENSE, {"tensor": 2}, method="lora", lora=lora)
        assert not any(isinstance(event, Op) and "swiglu" in event.name for event in tape.events)
        fused = built(DENSE, {}, method="lora", lora=lora)
        assert any(isinstance(event, Op) and "swiglu" in event.name for event in fused.events)


def test_a_row_over_cards() -> None:
    """Of two cards each has half of the tokens, and so of the logits; keys and values go round."""
    tape = built(DENSE, {"context": 2}, steps=1)
    assert TOKENS // 2 * 320 * 4 in [event.nbytes for event in tape.events if isinstance(event, Alloc)]
    assert sent(tape, "context")["all_gather"] == 2 * LAYERS  # forward and backward


class TestPipeline:
    @pytest.mark.parametrize(
        ("stages", "chunks", "count", "is_first", "expected"),
        [(4, 1, 16, True, 4), (4, 1, 16, False, 1), (4, 1, 2, True, 2), (4, 2, 16, True, 6), (4, 2, 16, False, 3)],
    )
    def test_micro_batches_under_way(self, stages: int, chunks: int, count: int, is_first: bool, expected: int) -> None:
        """Interleaved in two, the first of four has 1 + 2 x 3 + 4 = 11 halves, the last 1 + 4 = 5."""
        parallel = {"pipeline": stages, "virtual_stages": chunks}
        job = job_from_dict({"model": "m", "grad_accum": count, "hardware": {"gpus": 8}, "parallel": parallel})
        assert under_way(job, is_first) == expected

    def test_the_first_stage_has_no_head(self) -> None:
        """Of layers that are alike, half of them: `held` gives a stage its own."""
        tape = built(DENSE, {"pipeline": 2}, grad_accum=4)
        assert 320 * TOKENS * 4 not in [event.nbytes for event in tape.events if isinstance(event, Alloc)]

    def test_gradients_are_reduced_once_a_step(self) -> None:
        counts = {
            count: sent(built(DENSE, {"pipeline": 2}, steps=1, grad_accum=count), "shard")["reduce_scatter"]
            for count in (2, 4)
        }
        assert counts[2] == counts[4] > 0


class TestLoss:
    LOGITS = TOKENS * 320

    def wide(self, **more: Any) -> int:
        events = built(DENSE, {}, steps=1, **more).events
        return sum(isinstance(event, Alloc) and event.nbytes == self.LOGITS * 4 for event in events)

    def test_logits_that_are_not_widened(self) -> None:
        assert (self.wide() > 0, self.wide(loss="low_precision")) == (True, 0)

    def test_logits_that_are_never_made(self) -> None:
        tape = built(DENSE, {}, steps=1, kernels=["cut_cross_entropy"])
        assert self.LOGITS * 2 not in [event.nbytes for event in tape.events if isinstance(event, Alloc)]

    def test_other_stacks_widen_them(self) -> None:
        with pytest.raises(TunecastError, match="low_precision, known of automodel"):
            tunecast.predict({"model": "llama-3.2-1b", "loss": "low_precision"})


def test_fused_adapters_keep_nothing_between_their_matrices() -> None:
    """A kernel for both: of a forward pass one request less for each adapted layer of attention."""
    lora = {"rank": 24, "targets": ["*.q_proj"]}
    between = TOKENS * 24 * 2

    def requests(**more: Any) -> int:
        events = built(DENSE, {}, steps=1, method="lora", lora=lora, **more).events
        return sum(isinstance(event, Alloc) and event.nbytes == between for event in events)

    assert requests() > requests(kernels=["lora_triton"]) > 0


@pytest.mark.parametrize("stack", ["transformers", "trl", "torchtune"])
def test_patterns_are_its_own(stack: str) -> None:
    with pytest.raises(TunecastError, match="a pattern, which automodel takes"):
        tunecast.predict({"model": "llama-3.2-1b", "stack": stack, "method": "lora", "lora": {"targets": ["*_proj"]}})
