"""`generate()` on paper: prompts are read at once, then a token a row at a time, over keys and values that are kept
(transformers/generation/utils.py of 5.17.0, `GenerationMixin.generate`, `_sample`).

Every row becomes as long as it may: none draws its end before. Tokens are drawn at temperature 1 without further
limits, which are TRL's settings (trl/trainer/grpo_config.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build import functional as F
from tunecast.tape.build.cache import Cache
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.stacks import TRACE_INSTEAD
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import LOOP, LOOP_END, PASS, Op, Phase

Forward = Callable[..., Tensor]
"""Of a model, tokens and mask, and images by name: the logits of the last token of each row."""
EXACT_TOKENS = 32
"""Up to so many tokens each is generated operation by operation."""
PARTS = 4
"""Of more tokens, the stretches whose time is summed up from that of their ends."""
MOST_OUTLINES = 256
"""Of more tokens than that, some are made at once."""
IN_OUTLINE = (
    "generation: beyond {} tokens, of most only keys, values and logits are followed, several tokens at once; what "
    "layers borrow in between is that of the first and the last, and may lie elsewhere in memory"
)
FOLLOWED = (5, 17)
"""The release of transformers whose `generate()` this is."""
EXPERTS = (
    "generation: experts are taken to run as they train; transformers gathers the weights of chosen experts for each "
    "token instead (`batched_mm`), which borrows more and takes longer"
)
NOT_TRACED = "generation with attention {}: keys and values are kept as with sdpa; nobody traced it"
OTHER_RELEASE = "generation of transformers {}.{} is taken to be that of 5.17"
TO_THE_END = "completions are taken to be as long as rl.completion_length: none ends before"


def generate(
    model: Any, input_ids: Tensor, attention_mask: Tensor, new_tokens: int, forward: Forward,
    scores: list[Tensor] | None = None, **images: Tensor,
) -> Tensor:  # fmt: skip
    """Prompts and completions. Images are seen with the prompts and stay until all is written. With `output_scores`,
    which PPO asks for, `scores` takes those of all words of each token, over a temperature; in outline, of several
    tokens at once. What of it checks special tokens once is left out: it makes a few bytes."""
    machine = model.machine
    with machine.no_grad(), generating(machine):
        position_ids = F.cumsum(attention_mask, -1) - 1
        position_ids = position_ids.masked_fill(attention_mask.eq(0), 0)
        model_kwargs = {"attention_mask": attention_mask, "position_ids": position_ids}
        return sample(
            model, input_ids, {**model_kwargs}, new_tokens, forward, scores, images
        )  # which is one of its own


@contextlib.contextmanager
def generating(machine: Machine) -> Iterator[None]:
    """What follows, until the model trains, scores what was generated."""
    machine.phase, machine.in_forward, machine.module = Phase.GENERATE, False, ""
    machine.cache = Cache(machine)
    machine.assumptions[TO_THE_END] = None
    if machine.attention != "sdpa":
        machine.guesses[NOT_TRACED.format(machine.attention)] = None
    if machine.era.release < FOLLOWED:
        machine.guesses[OTHER_RELEASE.format(*machine.era.release)] = None
    yield
    machine.cache = None
    machine.phase = Phase.SCORE


def sample(
    model: Any, input_ids: Tensor, model_kwargs: dict[str, Tensor], new_tokens: int, forward: Forward,
    scores: list[Tensor] | None, images: Mapping[str, Tensor],
) -> Tensor:  # fmt: skip
    """`_sample`. Names live as long as they do there: what a step made goes when the next takes its name."""
    machine, rows = model.machine, input_ids.shape[0]
    pad_token_id = machine.run("_to_copy", (), (), INT64)
    unfinished_sequences = machine.run("ones", (), (rows,), INT64)
    generated = 0
    outputs = read(model, inputs_for_generation(input_ids, None, model_kwargs), partial(forward, **images))
    require_cache(model)
    machine.cache.logits_shape, machine.cache.logits_dtype = outputs.shape, outputs.dtype
    model_inputs: Any = None
    times, keeps_ops = times_of(new_tokens), machine.keeps_ops
    if len(times) < new_tokens:
        machine.guesses[IN_OUTLINE.format(EXACT_TOKENS)] = None
    for number in followed_tokens(new_tokens, times, machine.for_memory):
        in_full = number in times
        if number and in_full:
            machine.mark(Op(LOOP, kernels=0))
            model_inputs = inputs_for_generation(input_ids, 1, model_kwargs)
            outputs = read(model, model_inputs, forward)
        elif not in_full:
            machine.keep_ops(False)
            outputs = read_in_outline(model, number + 1 - generated)
        update_model_kwargs(model_kwargs, number + 1 - generated)
        next_token_logits = machine.run("_to_copy", (outputs,), (rows, outputs.shape[-1]), FLOAT32)
        next_token_scores = next_token_logits
        if scores is not None:
            tokens = number + 1 - generated
            shape = next_token_logits.shape if tokens == 1 else (tokens, *next_token_logits.shape)
            scores.append(machine.run("div", (next_token_logits,), shape, FLOAT32))
            next_token_scores = scores[-1] if tokens == 1 else next_token_logits
        probs = F.softmax(next_token_scores)
        next_tokens = machine.run("multinomial", (probs,), (rows, 1), INT64, args=(probs, 1)).squeeze(1)
        if in_full:
            machine.synchronize()  # its weights are checked by the host
            next_tokens = next_tokens * unfinished_sequences + pad_token_id * (1 - unfinished_sequences)
        input_ids = longer(input_ids, next_tokens[:, None], number + 1 - generated)
        if in_full:
            unfinished_sequences = machine.run(
                "bitwise_and", (unfinished_sequences, ~stopping_criteria(input_ids)), (rows,), INT64
            )
            machine.run("max", (unfinished_sequences,), (), INT64, args=(unfinished_sequences,)).eq(0)
            machine.synchronize()
        del outputs
        generated = number + 1
        if number and in_full:
            machine.mark(Op(LOOP_END, kernels=0, shapes=((times[number],),)))
        machine.keep_ops(keeps_ops)
    return input_ids


def longer(x: Tensor, last: Tensor, tokens: int) -> Tensor:
    """`torch.cat`; in outline, by several tokens at once."""
    if tokens == 1:
        return F.cat((x, last), -1)
    return x.machine.run("cat", (x,), (x.shape[0], x.shape[1] + tokens), x.dtype)


def followed_tokens(new_tokens: int, times: Mapping[int, int], for_memory: bool = True) -> list[int]:
    """Those that are made, in full or in outline: right before each in full and, for memory, of the others some,
    evenly."""
    stride = max(1, new_tokens // MOST_OUTLINES) if for_memory else new_tokens
    return sorted({*times, *[max(0, number - 1) for number in times], *range(0, new_tokens, stride)})


def times_of(new_tokens: int) -> dict[int, int]:
    """The tokens that are generated operation by operation, and for how many each stands: the time of a token grows in
    straight lines with those before it, so that sums between two are theirs."""
    if new_tokens <= EXACT_TOKENS:
        return dict.fromkeys(range(new_tokens), 1)
    nodes = [1 + (new_tokens - 2) * place // PARTS for place in range(PARTS + 1)]
    times = dict.fromkeys([0, *nodes], 1)
    for low, high in pairwise(nodes):
        between = high - low - 1
        times[low] += between // 2
        times[high] += between - between // 2
    return times


def read_in_outline(model: Any, tokens: int) -> Tensor:
    """`read`, of which only what stays is made: longer keys and values, and the logits."""
    machine, cache = model.machine, model.machine.cache
    for layer in cache.keys:
        with machine.within(layer):
            cache.grow(layer, tokens)
    with machine.within(model.output_embedding().path):
        return machine.run("mm", (), cache.logits_shape, cache.logits_dtype)


def read(model: Any, model_inputs: dict[str, Tensor], forward: Forward) -> Tensor:
    """A call of the model, whose layers add to the cache."""
    machine = model.machine
    machine.of_host(PASS)
    machine.cache.position_ids = model_inputs["position_ids"]
    try:
        return forward(model, model_inputs["input_ids"], model_inputs["attention_mask"])
    finally:
        machine.cache.position_ids = None


def last_logits(model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
    """A model's `forward` with `logits_to_keep=1`."""
    hidden_states = first_of(model.base()(input_ids, attention_mask=attention_mask, **images))
    length = hidden_states.shape[1]
    logits = model.output_embedding()(narrow(hidden_states, 1, length - 1, length))
    for step in model.logit_steps:
        logits = step(logits)
    return logits


def require_cache(model: Any) -> None:
    """Attention that is a family's own does not know of the cache."""
    if any([parameter.dim() == 3 for parameter in model.parameters()]):
        model.machine.guesses[EXPERTS] = None
    layers = [layer for layer in model.layers() if not shares_keys(layer)]
    if len(model.machine.cache.keys) != len(layers):
        raise Unsupported.at(
            "model", f"how {model.model_type} keeps keys and values while it generates is not written down. "
            f"To fix: rl.engine vllm; or {TRACE_INSTEAD.removeprefix('To fix: ')}"
        )  # fmt: skip


def shares_keys(layer: Any) -> bool:
    """With a layer before it, as Gemma 4's last ones do, which keep none of their own."""
    return bool(getattr(getattr(layer, "self_attn", None), "is_kv_shared_layer", False))


def inputs_for_generation(
    input_ids: Tensor, last: int | None, model_kwargs: dict[str, Tensor]
) -> dict[str, Tensor]:  # fmt: skip
    """`prepare_inputs_for_generation`: the tokens not read yet, all or the last ones, copied, and their positions."""
    rows, machine = input_ids.shape[0], input_ids.machine
    shape = input_ids.shape if last is None else (rows, last)
    model_inputs = {"input_ids": machine.run("clone", (input_ids,), shape, INT64)}
    model_inputs["position_ids"] = model_kwargs["position_ids"]
    if last is not None:
        model_inputs["position_ids"] = machine.run("clone", (model_kwargs["position_ids"],), shape, INT64)
    model_inputs["attention_mask"] = model_kwargs["attention_mask"]
    return model_inputs


def update_model_kwargs(model_kwargs: dict[str, Tensor], tokens: int) -> None:
    """`_update_model_kwargs_for_generation`: one token more, or in outline several."""
    position_ids = model_kwargs["position_ids"]
    machine, (rows, length) = position_ids.machine, position_ids.shape
    last = narrow(position_ids, 1, length - 1, length)
    next_position_ids = machine.run("arange", (), (1, 1), INT64) + last + 1
    next_position_ids = longer(position_ids, next_position_ids, tokens)
    model_kwargs["position_ids"] = next_position_ids
    attention_mask = model_kwargs["attention_mask"]
    model_kwargs["attention_mask"] = longer(
        attention_mask, machine.run("new_ones", (), (rows, 1), INT64), tokens
    )  # fmt: skip


def stopping_criteria(input_ids: Tensor) -> Tensor:
    """Which rows are done: as long as allowed, or at their end."""
    machine, rows = input_ids.machine, input_ids.shape[0]
    is_done = machine.run("full", (), (rows,), BOOL)
    is_done = is_done | machine.run("full", (), (rows,), BOOL)
    ends = machine.run("isin", (input_ids,), (rows, 1), BOOL)
    return is_done | ends.any(1)
