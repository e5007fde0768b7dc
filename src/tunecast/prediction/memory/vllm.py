"""What vLLM holds of a training card, beside PyTorch's allocator, and whether it starts there: `vllm_share`.

    gpu_memory_utilization x all of the card  =  weights / tp  +  what the profile run holds for a moment
                                                 +  CUDA graphs  +  what is not torch's  +  the cache of keys and values

The cache takes what the rest leaves. TRL runs the engine inside the training process (`external_launcher`), so the
profile run's moment is lent: its blocks lie in the cache of PyTorch's allocator, where training has them too.

Source   vLLM 0.27.1: `request_memory` (vllm/v1/worker/utils.py), `determine_available_memory` and `sleep` of
         vllm/v1/worker/gpu_worker.py, `profile_run` and `profile_cudagraph_memory` of gpu_model_runner.py beside it,
         `sleep` and `wake_up` of vllm/device_allocator/cumem.py, `_check_enough_kv_cache_memory` of
         vllm/v1/core/kv_cache_utils.py. TRL 1.16.0, trl/generation/vllm_generation.py, `_init_vllm`, `sync_weights`,
         `generate`: max_num_batched_tokens 4096, sleep of level 2, which drops the weights; they come back by the sync.
Asleep   weights and cache are unmapped; graphs and what is not torch's stay. Before waking TRL empties PyTorch's cache,
         and what then lies on the card is alive: weights and optimizer have to fit beside the engine that is awake.
Ignored  what merging adapters for a sync borrows of PyTorch (two tensors of a layer); pictures in the profile run;
         padding of the vocabulary to 64; recurrent states of layers without a cache, which do not grow with the row;
         that a cache of blocks of several kinds (`hybrid_kv_cache_manager`) wastes some.
Nobody traced or measured any of it here: every figure is an estimate, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from tunecast.errors import Unsupported
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig, language_part
from tunecast.job.names import LANGUAGE, ROLLOUTS
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.job.task_sections import Rl
from tunecast.prediction.memory.replay import Replay
from tunecast.prediction.outside.checkpoint import FOUR_BIT, Parameter
from tunecast.prediction.outside.paper import tensors_of_job
from tunecast.records import NamedTuple, replace_unchecked
from tunecast.units import GIB, MIB, gib

WIDTH = 2
"""Bytes of a weight and of a key: `dtype: auto` makes bfloat16 of float32 too (vllm/config/model.py)."""
FOUR_BIT_BYTES = 0.5 + 4 / 64
"""Of a weight that bitsandbytes packs in flight: four bits, and a float32 for each block of 64."""
BATCHED_TOKENS = 4096
"""TRL's `max_num_batched_tokens`: what the profile run computes."""
SERVER_FRACTION = 0.92
"""`gpu_memory_utilization` where nobody says it (vllm/config/cache.py): a server has its cards for itself."""
COLOCATED_FRACTION = 0.3
"""The field's default, which is TRL's for engines beside the trainer."""
SERVER_SEQUENCES = 256
"""`max_num_seqs` of a server, at least (vllm/engine/arg_utils.py, `get_batch_defaults`: 1,024 on cards of 70 GiB)."""
SAMPLER_BYTES = 2 + 4 + 4 + 8 + 4 + 4
"""Of each logit in the sampler's dummy run: bfloat16, float32, sorted with its places in int64, softmax and its sum
(vllm/v1/sample/ops/topk_topp_sampler.py, `forward_native`, which TRL's processed_logprobs ask for)."""
GRAPH_BYTES = 9 * MIB
"""Of each captured graph: 0.73 GiB for 51 and 35 of them (vllm-project/vllm#39559)."""
MOST_GRAPH_BYTES = 28 * MIB
"""What graphs of 400 to 464 tokens took (vllm-project/vllm#22897); those of 80 to 112 took 6 to 8 (#23184)."""
OTHER_BYTES = 160 * MIB
"""Not torch's: 0.16 GiB in vLLM's own log of a 7B model (kubernetes-sigs/gateway-api-inference-extension#550)."""
MOST_ASLEEP_BYTES = 3 * GIB
"""What vLLM's tests allow a sleeping engine of a 1B model (tests/basic_correctness/test_mem.py)."""
SYNC_BYTES = 120 * MIB
"""Of the communicator that carries weights to a server: NCCL's library and a ring (prediction/memory/nccl.py)."""

FIELD = "rl.vllm.memory_fraction"


class VllmShare(NamedTuple):
    """Of one training card."""

    low_bytes: int
    nbytes: int
    high_bytes: int
    """While the model trains."""
    awake_bytes: int
    """While it generates; as `nbytes` where it never sleeps."""
    told: str = ""
    """The estimate in words."""
    syncing_bytes: int = 0
    """While it gets new weights, with what PyTorch gathers for that."""

    @property
    def most_bytes(self) -> int:
        return max(self.awake_bytes, self.syncing_bytes)


NONE = VllmShare(0, 0, 0, 0)


class VllmEngine(NamedTuple):
    """One card of an engine, as vLLM's own profiling would account for it."""

    requested_bytes: int
    weights_bytes: int
    moment_bytes: int
    """The profile run's peak above what stays."""
    graphs_bytes: int
    token_bytes: int
    """Of the cache, one token of one sequence."""
    longest: int
    """Tokens of a prompt with its completion."""
    sequences: int
    """That may run at once: `max_num_seqs`."""

    @property
    def cache_bytes(self) -> int:
        """0 or less: it does not start."""
        return self.requested_bytes - self.weights_bytes - self.moment_bytes - self.graphs_bytes - OTHER_BYTES

    @property
    def tokens(self) -> int:
        """That the cache holds."""
        return max(0, self.cache_bytes) // self.token_bytes if self.token_bytes else 0

    @property
    def at_once(self) -> int:
        """Sequences that run beside each other with their whole length in the cache."""
        return min(self.sequences, self.tokens // self.longest) if self.token_bytes else self.sequences

    @property
    def least_bytes(self) -> int:
        """Of `requested_bytes`, for one sequence."""
        return self.requested_bytes - self.cache_bytes + self.longest * self.token_bytes


def could_use_vllm(job: Job) -> bool:
    """Whether `generate()` of transformers writes what vLLM could: PPOTrainer does not know vLLM."""
    return job.task in ("grpo", "rloo") and job.rl.engine != "vllm"


def generates_by_vllm(job: Job) -> bool:
    return job.task in ROLLOUTS and job.rl.engine == "vllm"


def server_cards(job: Job) -> int:
    """Cards that serve, beside those that train."""
    return job.rl.vllm.cards if generates_by_vllm(job) and job.rl.vllm.place == "server" else 0


def prompt_length(job: Job) -> int:
    own = job.rl.prompt_length
    return max(1, job.seq_len - job.rl.completion_length) if own is None else own


def completions(job: Job) -> int:
    """Of one generation, of one rank (trl/trainer/grpo_config.py, `generation_batch_size`)."""
    return job.micro_batch * (job.rl.steps_per_generation or job.grad_accum)


def requested_bytes(job: Job, gpu: Gpu) -> int:
    """Of a card that trains, for as long as it does: what an engine that does not sleep may take."""
    said = job.rl.vllm
    stays = generates_by_vllm(job) and said.place == "colocate" and not said.sleep
    return ceil(gpu.memory_bytes * said.memory_fraction) if stays else 0


def served_tensors(job: Job, model: ModelConfig) -> tuple[Parameter, ...]:
    """Of the language model, which the task has nothing to do with."""
    return tensors_of_job(replace_unchecked(job, task=LANGUAGE[0], rl=Rl()), model)


def engine_of(job: Job, model: ModelConfig, gpu: Gpu) -> VllmEngine:
    """On one of its cards: beside the trainer, or a server's."""
    said, config = job.rl.vllm, text_config(model)
    serves = said.place == "server"
    fraction = said.memory_fraction
    if serves and fraction == COLOCATED_FRACTION:
        fraction = SERVER_FRACTION
    sequences = SERVER_SEQUENCES if serves else completions(job) * said.tensor
    return VllmEngine(
        ceil(gpu.memory_bytes * fraction),
        weights_bytes(served_tensors(job, model)) // said.tensor,
        moment_bytes(model, sequences, said.tensor),
        graphs(sequences) * GRAPH_BYTES,
        token_bytes(config, said.tensor),
        prompt_length(job) + job.rl.completion_length,
        sequences,
    )


def vllm_share(job: Job, model: ModelConfig, gpu: Gpu) -> VllmShare:
    """Raises `Unsupported` where vLLM refuses to start: the fraction leaves no room for one sequence."""
    if not generates_by_vllm(job):
        return NONE
    said, engine = job.rl.vllm, engine_of(job, model, gpu)
    serves = said.place == "server"
    _require_cards(*((said.cards, "rl.vllm.cards") if serves else (job.hardware.cards, "rl.vllm.tensor")), said.tensor)
    _require_room(engine, gpu)
    doubts = _doubts(engine, text_config(model))
    gathered = gathered_bytes(job, model)
    if serves:
        told = "vLLM serves from other cards; what its communicator holds of the first that trains is left out"
        return VllmShare(0, 0, SYNC_BYTES, 0, "; ".join([told, *doubts]), gathered)
    shared = engine.weights_bytes if stack_of(job).lends_weights else 0
    held = engine.requested_bytes - engine.moment_bytes - shared
    slack = graphs(engine.sequences) * MOST_GRAPH_BYTES
    what = f"vLLM's share is estimated by its own rule: {gib(held)}, {said.memory_fraction:g} of the card less what"
    what = f"{what} its profile run only borrows{' and the weights it shares with the trainer' if shared else ''}"
    if not said.sleep:
        low = max(0, held - engine.moment_bytes - engine.graphs_bytes)
        syncing = held + gathered if gathered else 0
        return VllmShare(low, held, held + slack, held, "; ".join([what, *doubts]), syncing)
    asleep = engine.graphs_bytes + OTHER_BYTES
    told = f"{what}, while it generates, and {gib(asleep)} asleep"
    syncing = asleep + engine.weights_bytes + gathered  # its cache wakes up afterwards
    most = max(asleep, MOST_ASLEEP_BYTES)
    return VllmShare(OTHER_BYTES, asleep, most, held, "; ".join([told, *doubts]), syncing)


def gathered_bytes(job: Job, model: ModelConfig) -> int:
    """What other cards hold of the weights, where all have to be whole at once so that adapters are merged into them:
    under ZeRO 3 (`_iter_named_params`). FSDP gives one weight after another."""
    cards = job.hardware.cards
    if job.method == "full" or cards == 1 or sharding_of(job).zero_stage != 3:
        return 0
    return weights_bytes(served_tensors(job, model)) * (cards - 1) // cards


def share_beside(share: VllmShare, run: Replay, left_bytes: int) -> VllmShare:
    """The share of an engine that takes more while it generates or gets weights, beside this run: what that is of the
    card beyond what the run reserves at most, or all of it where there is no room: then the run has none either.

    `run` is within what the engine leaves of `left_bytes` while the model trains.
    """
    most = share.most_bytes
    if most <= share.nbytes:
        return share
    alive = alive_while_generating(run)
    nbytes = most if alive + most > left_bytes else max(share.nbytes, alive + most - run.reserved_bytes)
    return share._replace(nbytes=nbytes, high_bytes=max(share.high_bytes, nbytes))


def alive_while_generating(run: Replay) -> int:
    """Allocated when a step begins, at most: then TRL generates, beside what is kept from one step to the next."""
    starts: dict[int, int] = {}
    for course in run.courses:
        starts.setdefault(course.position, course.start_bytes)
    return max((start for position, start in starts.items() if position >= 0), default=run.model_bytes)


def weights_bytes(tensors: Iterable[Parameter]) -> int:
    """vLLM's own copy, without adapters, which are merged into it."""
    return ceil(
        sum(
            each.elements * (FOUR_BIT_BYTES if each.dtype in FOUR_BIT else WIDTH)
            for each in tensors
            if not each.is_adapter
        )
    )


def token_bytes(config: Mapping[str, Any], tensor: int) -> int:
    """Of keys and values of one token in the layers that keep them, on one of `tensor` cards (vllm/v1/
    kv_cache_interface.py, `AttentionSpec`). Latent attention keeps one vector for all heads, whole on each card."""
    layers = attention_layers(config)
    if config.get("kv_lora_rank"):
        return layers * int(config["kv_lora_rank"] + (config.get("qk_rope_head_dim") or 0)) * WIDTH
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    kv_heads = config.get("num_key_value_heads") or heads
    width = config.get("head_dim") or (config.get("hidden_size") or config.get("n_embd") or 0) // heads
    return layers * 2 * max(1, kv_heads // tensor) * int(width) * WIDTH


KEEPERS = ("attention", "hybrid")
"""In the names of layers that cache keys and values; of "linear_attention" there is a state instead."""


def attention_layers(config: Mapping[str, Any]) -> int:
    kinds = config.get("layer_types") or config.get("layers_block_type") or ()
    if not kinds:
        return int(config.get("num_hidden_layers") or config.get("n_layer") or 0)
    return sum(any(word in kind for word in KEEPERS) and "linear" not in kind for kind in kinds)


def moment_bytes(model: ModelConfig, sequences: int, tensor: int) -> int:
    """The profile run's peak, of the MLP or of the sampler: rows and their residual, both products of the MLP and
    their product; or logits of all sequences."""
    rows = 2 * BATCHED_TOKENS * model.hidden_size * WIDTH
    mlp = BATCHED_TOKENS * 3 * model.intermediate_size // tensor * WIDTH
    return rows + max(mlp, sequences * model.vocab_size * SAMPLER_BYTES)


def graphs(sequences: int) -> int:
    """Captured: of mixed batches up to twice the sequences, of decoding up to as many
    (vllm/config/vllm.py, `_set_cudagraph_sizes`)."""
    most = min(2 * sequences, 512)
    return len(_sizes(most)) + len(_sizes(min(sequences, most)))


def _sizes(most: int) -> list[int]:
    few = [size for size in (1, 2, 4) if size <= most]
    return [*few, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]


def text_config(model: ModelConfig) -> Mapping[str, Any]:
    return language_part(model.raw)[1]


def _require_cards(cards: int, field: str, tensor: int) -> None:
    if cards % tensor:
        raise Unsupported.at(field, f"vLLM shares its weights among {tensor} of {cards} cards; allowed: a divisor")


def _require_room(engine: VllmEngine, gpu: Gpu) -> None:
    """Where weights and one sequence alone are too much, whatever the rest takes."""
    needs = engine.weights_bytes + engine.longest * engine.token_bytes
    if needs <= engine.requested_bytes:
        return
    least = ceil(100 * engine.least_bytes / gpu.memory_bytes) / 100
    what = f"of {gib(engine.requested_bytes)} weights take {gib(engine.weights_bytes)}"
    rest = f"and a row of {engine.longest:,} tokens needs {gib(engine.longest * engine.token_bytes)} of cache"
    remedy = f"{least:g} or more" if least <= 1 else "a larger card, or more cards with rl.vllm.tensor"
    raise Unsupported.at(FIELD, f"vLLM does not start on {gpu.name}: {what}, {rest}. To fix: {remedy}")


def _doubts(engine: VllmEngine, config: Mapping[str, Any]) -> list[str]:
    """Why it may refuse to start all the same: "No available memory for the cache blocks", or a context that the cache
    cannot hold, which is the model's own where TRL's `vllm_max_model_length` is not set."""
    if engine.tokens < engine.longest:
        return [f"it may not start: {gib(max(0, engine.cache_bytes))} are left for its cache"]
    context = config.get("max_position_embeddings") or config.get("n_positions") or 0
    if not engine.token_bytes or context <= engine.tokens:
        return []
    return [
        f"it starts with vllm_max_model_length of at most about {engine.tokens:,} tokens, not the model's {context:,}"
    ]
