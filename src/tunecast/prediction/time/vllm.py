"""Seconds of a generation by vLLM, as an estimate with a wide range: `generation_s`.

    weights synced ► (woken) ► prompts read ► completions written, as many at once as the cache holds ► (asleep)

A step of decoding writes one token of every sequence that runs. The card reads all weights once and each sequence's
cache, or multiplies, whichever takes longer; then the host schedules the next and takes every token in. Prompts are
read at the rate of large products, once for all completions of a prompt, which share the prefix in the cache.

Source   what one sequence takes, Llama 3.1 8B in 16 bits: 6.48 ms on an H100, 6.59 with four (vLLM 0.21, yobitelcomm's
         InferenceBench, concurrency sweep), 75 tokens/s on an A100 of 40 GB (vLLM 0.23, johnmusgrave.com, "vLLM
         throughput-latency sweep"); Mistral 7B, 210 tokens/s of four on an RTX 4090 (mushfiqrahman.dev, p=1668)
         what 1,000 take at once, 217,393 tokens in and 201,648 out (ShareGPT): Qwen3 8B 31 s on an H100, 41 s on an
         A100, 108 s on an RTX 4090 (vLLM 0.9.2), 14B 64 s and 107 s (vLLM 0.11; gpustack/gpustack,
         docs/performance-lab). tests/unit/test_vllm_time.py has what is said of these
         TRL 1.16.0, trl/generation/vllm_generation.py, `sync_weights`, `_iter_named_params`, `generate`
Ignored  completions that end early: all are taken to be as long as they may be; tools and several turns; speculative
         decoding; pictures.
"""

from __future__ import annotations

from math import ceil

from tunecast.hardware.cluster import cards_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.job.shardings import sharding_of
from tunecast.prediction.memory.vllm import (
    FOUR_BIT_BYTES,
    WIDTH,
    VllmEngine,
    completions,
    engine_of,
    prompt_length,
    served_tensors,
    text_config,
)
from tunecast.prediction.outside.checkpoint import FOUR_BIT, Parameter
from tunecast.prediction.price.collectives import collective_seconds
from tunecast.prediction.price.offload import host_link
from tunecast.prediction.price.rates import rates_of
from tunecast.prediction.time.runtime import StepTime
from tunecast.prediction.time.whole import Likely, SecondsRange
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.op import Op, Phase
from tunecast.units import digits

BANDWIDTH: Likely = (0.72, 0.85, 0.5)
"""Of the data sheet's bytes a second, the launches and gaps of a step included; the faster end comes second, as its
seconds do. One sequence: 0.69 on the H100, 0.73 on the A100, 0.75 (of four) on the RTX 4090."""
PRODUCTS: Likely = (0.85, 1.0, 0.5)
"""Of the rate that products reach in training: a guess."""
PER_TOKEN_S: Likely = (30e-6, 5e-6, 150e-6)
"""Of the host, for each token of each sequence: sampled, taken in, made text, its log-probability a Python object. What
the runs of 1,000 sequences took beyond their reading and multiplying, over their tokens: 30 to 220 us, with an HTTP
server and rows that end apart, which are not in it."""
UNPACKED_BYTES = 2 * WIDTH
"""What a packed weight costs more each time: bitsandbytes writes it in 16 bits and reads it again (vllm/model_executor/
layers/quantization/bitsandbytes.py, `_apply_4bit_weight`)."""
PER_TENSOR_S: Likely = (1e-3, 0.2e-3, 10e-3)
"""Of each tensor that is synced, on the host: `load_weights` lists all of the model's names anew. A guess."""
COPY_PASSES = 2
"""Over the weights: read from the trainer's, written to vLLM's."""
MERGE_PASSES = 8
"""Adapters: their product is written, read and added, before and, taken off again, after (PEFT 0.21, peft/tuners/lora/
layer.py, `merge`, `unmerge`)."""
SLEEP_S: Likely = (0.5, 0.1, 3.0)
"""To unmap and to map again: waking takes 0.1 to 0.8 s of small models and 0.8 to 2.6 s where weights come back too
(vLLM's blog of 2025-10-26, "Zero-Reload Model Switching with vLLM Sleep Mode")."""
ENGINE_START_S: Likely = (60.0, 25.0, 180.0)
"""Once: weights read, compiled, profiled and captured. 54.6 s to initialise (vllm-project/vllm#12695), 34 s to profile
of which 29 s compiling (kubernetes-sigs/gateway-api-inference-extension#550), 14 s to capture (vllm#11349)."""
GENERATION = "generation"
"""Its part of a step."""
ALL_REDUCES = 2
"""Of a layer whose weights several cards share: behind attention and behind the MLP."""


class TokenWork(NamedTuple):
    """What one card of an engine does for one token."""

    dense_bytes: float
    """Of weights that every step reads."""
    expert_bytes: float
    """Of all experts."""
    chosen: float
    """The share of experts that one token chooses."""
    flops: float
    layers: int
    hidden: int
    tensors: int

    def read_bytes(self, sequences: int) -> float:
        """Of weights, in a step of so many: experts that nobody chose stay where they are."""
        return self.dense_bytes + self.expert_bytes * (1 - (1 - self.chosen) ** sequences)


def work_of(tensors: tuple[Parameter, ...], model: ModelConfig, tensor: int) -> TokenWork:
    """A table of embeddings is looked up, and read whole only where it is the head too."""
    config = text_config(model)
    every = next((config[name] for name in EXPERTS if config.get(name)), 1)
    chosen = min(1.0, next((config[name] for name in CHOSEN if config.get(name)), every) / every)
    dense = experts = flops = 0.0
    own = [each for each in tensors if not each.is_adapter]
    for each in own:
        if each.is_embedding and not model.tied:
            continue
        nbytes = each.elements * (FOUR_BIT_BYTES + UNPACKED_BYTES if each.dtype in FOUR_BIT else WIDTH)
        if ".experts." in each.name:
            experts += nbytes
            flops += 2 * each.elements * chosen
        else:
            dense += nbytes
            flops += 2 * each.elements
    parts = (dense / tensor, experts / tensor, chosen, flops / tensor)
    return TokenWork(*parts, model.layers, model.hidden_size, len(own))


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k")


class Prompts(NamedTuple):
    """What one engine is given."""

    completions: int
    prompts: int
    """Different ones."""
    prompt_length: int
    completion_length: int


def prompts_of(job: Job) -> Prompts:
    """A server's engines share what all ranks ask for; beside the trainer a group of cards has its own ranks' rows
    (trl/generation/vllm_generation.py, `generate`)."""
    said = job.rl.vllm
    rows = completions(job) * said.tensor
    if said.place == "server":
        rows = ceil(completions(job) * ranks_of(job) / max(1, said.cards // said.tensor))
    return Prompts(rows, ceil(rows / job.rl.generations), prompt_length(job), job.rl.completion_length)


def generation_s(job: Job, model: ModelConfig, gpu: Gpu) -> SecondsRange:
    """One generation: `steps_per_generation` micro-batches on every rank. With a server all training cards wait."""
    engine, work = engine_of(job, model, gpu), work_of(served_tensors(job, model), model, job.rl.vllm.tensor)
    parts = [rollout_s(engine, work, prompts_of(job), gpu, job.rl.vllm.tensor), sync_s(job, work, gpu)]
    if job.rl.vllm.sleep and job.rl.vllm.place == "colocate":
        parts.append(SecondsRange(*SLEEP_S))
    return SecondsRange(*map(sum, zip(*parts, strict=True)))


def generation_told(job: Job, model: ModelConfig, gpu: Gpu) -> str:
    """What is taken for granted of its time."""
    each = generation_s(job, model, gpu)
    ends = f"{digits(each.low_s)} to {digits(each.high_s)} s"
    long = f"completions of {job.rl.completion_length:,} tokens"
    return f"a generation by vLLM takes {digits(each.likely_s)} s ({ends}), estimated from published runs; {long}"


def with_engine(start: Likely) -> Likely:
    """Seconds until training begins, with vLLM's own start, for which the trainer waits."""
    likely, low, high = (one + other for one, other in zip(start, ENGINE_START_S, strict=True))
    return likely, low, high


def with_generation(step: StepTime, each: SecondsRange, job: Job) -> StepTime:
    """An optimizer step with its share of a generation, which serves `steps_per_generation` micro-batches
    `iterations` times (trl/trainer/grpo_trainer.py, `_prepare_inputs`). A server's work is not the training cards'."""
    share = job.grad_accum / ((job.rl.steps_per_generation or job.grad_accum) * job.rl.iterations)
    works = job.rl.vllm.place == "colocate"
    return replace(
        step,
        step_s=step.step_s + share * each.likely_s,
        low_s=step.low_s + share * each.low_s,
        high_s=step.high_s + share * each.high_s,
        breakdown_s={**step.breakdown_s, GENERATION: share * each.likely_s},
        gpu_busy_s=step.gpu_busy_s + (share * each.likely_s if works else 0.0),
        task_s={**step.task_s, Phase.GENERATE.value: share * each.likely_s} if step.task_s else {},
    )


def rollout_s(engine: VllmEngine, work: TokenWork, asked: Prompts, gpu: Gpu, tensor: int = 1) -> SecondsRange:
    """Prompts in, completions out."""
    at_once = max(1, min(asked.completions, engine.at_once))
    full, rest = divmod(asked.completions, at_once)
    rate = rates_of(gpu).flop_per_s("bfloat16")
    ends = []
    # Prefixes are shared at best; sequences that begin at the same moment may each read theirs.
    for end, read in enumerate((asked.prompts, asked.prompts, asked.completions)):
        prefill_s = read * asked.prompt_length * work.flops / (rate * PRODUCTS[end])
        decode_s = full * _step_s(at_once, engine, work, asked, gpu, tensor, end)
        decode_s += _step_s(rest, engine, work, asked, gpu, tensor, end) if rest else 0.0
        ends.append(prefill_s + asked.completion_length * decode_s)
    return SecondsRange(*ends)


def _step_s(
    sequences: int, engine: VllmEngine, work: TokenWork, asked: Prompts, gpu: Gpu, tensor: int, end: int
) -> float:  # fmt: skip
    """One token of each, in the middle of its completion."""
    rates = rates_of(gpu)
    cached = sequences * (asked.prompt_length + asked.completion_length / 2) * engine.token_bytes
    read_s = (work.read_bytes(sequences) + cached) / (rates.bytes_per_s * BANDWIDTH[end])
    multiplied_s = sequences * work.flops / (rates.flop_per_s("bfloat16") * PRODUCTS[end])
    exchanged_s = 0.0
    if tensor > 1:
        nbytes = sequences * work.hidden * WIDTH
        op = Op("all_reduce", read_bytes=nbytes, written_bytes=nbytes)
        exchanged_s = ALL_REDUCES * work.layers * collective_seconds(op, cards_of(gpu, tensor, 1))
    return max(read_s, multiplied_s) + exchanged_s + sequences * PER_TOKEN_S[end]


def sync_s(job: Job, work: TokenWork, gpu: Gpu) -> SecondsRange:
    """The trained weights as vLLM's: gathered where they are cut, adapters merged, then copied on the card or sent to
    the server. Where vLLM generates with the trained weights themselves there is little to do, which is within."""
    said, rates = job.rl.vllm, rates_of(gpu)
    whole = (work.dense_bytes + work.expert_bytes) * said.tensor
    passes = COPY_PASSES / said.tensor + (0 if job.method == "full" else MERGE_PASSES)
    moved_s = 0.0
    if sharding_of(job).cuts_weights and job.hardware.cards > 1:
        inside = cards_of(gpu, job.hardware.gpus, job.hardware.nodes, None, job.hardware.interconnect)
        moved_s += collective_seconds(Op("all_gather", written_bytes=int(whole)), inside)
    if said.place == "server":
        moved_s += whole / (gpu.link_bytes_per_s or host_link(gpu).to_host_bytes_per_s)
    ends = []
    for end in range(3):
        copied_s = passes * whole / (rates.bytes_per_s * BANDWIDTH[end])
        ends.append(copied_s + moved_s * (1.0, 0.7, 4.0)[end] + work.tensors * PER_TENSOR_S[end])
    return SecondsRange(*ends)
