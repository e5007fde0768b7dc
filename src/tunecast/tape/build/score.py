"""A head in the vocabulary's place, one output for each label: transformers/modeling_layers.py of 5.17.0.

`AutoModelForSequenceClassification` gives the last token's outputs, `AutoModelForTokenClassification` those of all.
PEFT trains the head whole beside its adapters: a copy of it, and the one it was copied from stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CausalLM
from tunecast.tape.build.dtypes import BOOL, INT32, INT64
from tunecast.tape.build.families import FAMILIES
from tunecast.tape.build.modules import Linear, Module, bring
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.op import Role

GENERIC = frozenset({
    "arcee", "deepseek_v3", "exaone4", "gemma", "gemma2", "glm", "glm4", "gpt_oss", "llama", "minimax", "ministral",
    "ministral3", "mistral", "mistral4", "mixtral", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2",
})  # fmt: skip
"""Families with both of the generic classes."""
SEQUENCES = GENERIC | {
    "bloom", "deepseek_v2", "falcon", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj",
    "hunyuan_v1_dense", "mpt", "olmo", "olmo2", "olmo3", "opt", "qwen3_5_text",
}  # fmt: skip
"""Those with a classifier of sequences (transformers/models/auto/modeling_auto.py); the classes of their own that a few
have do the same."""


def with_score(model: Any, labels: int) -> Any:
    """The model's body, and `score` where its head was. Raises `Unsupported` where transformers has no such class."""
    return _with_head(model, labels, SEQUENCES, "AutoModelForSequenceClassification", forward)


def with_token_scores(model: Any, labels: int) -> Any:
    """The same of every token, with a bias."""
    return _with_head(model, labels, GENERIC, "AutoModelForTokenClassification", token_forward, bias=True)


def without_head(model: Any) -> Any:
    """`AutoModel`: the body alone."""
    if not isinstance(model, CausalLM):
        raise Unsupported.at("model", f"the closed form does not know {model.model_type} without its head")
    _remove_head(model, NoHead(model.machine))
    return model


def _with_head(model: Any, labels: int, families: frozenset[str], auto: str, forward: Any, bias: bool = False) -> Any:
    """Models that see have no such class in transformers: whoever gives them a head makes it (swift/model/patcher.py,
    `_patch_sequence_classification`)."""
    is_known = isinstance(model, WithParts) or model.model_type in families or model.model_type not in FAMILIES
    if not isinstance(model, CausalLM) or not is_known:
        named = getattr(model, "model_type", type(model).__name__)
        raise Unsupported.at(
            "model",
            f"transformers has no {auto} of {named}, or it is not written down; known: {', '.join(sorted(families))}."
            " To fix: trace your own script, `tunecast trace -- train.py`",
        )
    _remove_head(model, Linear(model.machine, model.output_embedding().inputs, labels, bias))
    model.own_forward = forward
    use_own_forward(model)
    return model


def _remove_head(model: Any, instead: Module) -> None:
    head = model.output_embedding()
    name = next(name for name, child in model.children.items() if child is head)
    del model.children[name]
    delattr(model, name)
    model.score = instead
    model.tied = False
    model.output_embedding = MethodType(trained_head, model)


def trained_head(self: Any) -> Any:
    return getattr(self.score, "modules_to_save", self.score)


class NoHead(Module):
    """For those who ask a model for its head."""

    weight: Any = None


def use_own_forward(model: Any) -> None:
    """Kernels that take a causal language model's head and loss over leave a classifier's alone."""
    model.forward = MethodType(model.own_forward, model)


class SavedWhole(Module):
    """peft/utils/other.py, `ModulesToSaveWrapper`: a copy is trained, and what it was copied from stays, frozen."""

    def __init__(self, original: Linear) -> None:
        super().__init__(original.machine)
        self.original_module = original
        self.modules_to_save = Linear(original.machine, original.inputs, original.outputs, original.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        return self.modules_to_save(x)


def save_whole(model: Any) -> None:
    """What `PeftModelForSequenceClassification` does to the head. It keeps its dtype: adapters alone are widened."""
    original = model.score
    wrapper = SavedWhole(original)
    wrapper.name_all(original.path)
    for name, tensor in wrapper.modules_to_save.own.items():
        bring(tensor, wrapper.modules_to_save.path, Role.ADAPTERS, original.own[name].dtype)
    model.score = wrapper


# ------------------------------------------------------------------------------------------------------ forward passes


def forward(
    self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **images: Tensor
) -> Any:
    """`GenericForSequenceClassification.forward`: the outputs of each row's last token; with labels the loss too."""
    machine = self.machine
    batch, length = input_ids.shape
    hidden_states = first_of(self.base()(input_ids, attention_mask=attention_mask, **images))
    logits = self.score(hidden_states)
    non_pad_mask = machine.run("ne", (input_ids,), input_ids.shape, BOOL).to(INT32)
    token_indices = machine.run("arange", (), (length,), INT32)
    last_non_pad_token = last_place(token_indices * non_pad_mask)
    pooled_logits = rows_at(logits, machine.run("arange", (), (batch,), INT64), last_non_pad_token)
    if labels is None:
        return pooled_logits
    return classification_loss(pooled_logits, labels), pooled_logits


def token_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
    """`GenericForTokenClassification.forward`, without dropout, which trainers of process rewards switch off, and
    transformers/loss/loss_utils.py, `ForTokenClassification`."""
    sequence_output = self.base()(input_ids, attention_mask=attention_mask)
    logits = self.score(sequence_output)
    return token_loss(logits, labels), logits


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.view(-1, logits.shape[-1])
    labels = labels.view(-1)
    logits = logits.float()
    return F.cross_entropy(logits, labels)


def classification_loss(pooled_logits: Tensor, labels: Tensor) -> Tensor:
    """transformers/loss/loss_utils.py, `ForSequenceClassificationLoss`: of one label a regression."""
    outputs = pooled_logits.shape[-1]
    if outputs > 1:
        return F.cross_entropy(pooled_logits.view(-1, outputs), labels.view(-1))
    difference = pooled_logits.squeeze(-1).float() - labels
    return difference.pow(2).sum()


def last_place(places: Tensor) -> Tensor:
    return places.machine.run("argmax", (places,), places.shape[:1], INT64, args=(places, -1))


def rows_at(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """x[first, second]."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        args = (zeros, [node.take(0), node.take(1)], gradients[0], True)
        return (machine.run("index_put", (zeros, gradients[0]), shape, dtype, args=args),)

    node = start(machine, (x,), back, (first, second))
    return finish(node, machine.run("index", (x, first, second), (*first.shape, *shape[2:]), dtype))


def gather(x: Tensor, index: Tensor) -> Tensor:
    """torch.gather. What it chose from is saved (tools/autograd/derivatives.yaml), of which the gradient takes the
    shape alone."""
    machine, dtype = x.machine, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), node.take(0).shape, dtype)
        machine.launch("scatter_add_", (zeros, node.take(1), gradients[0]), dtype, gradients[0].nbytes)
        return (zeros,)

    node = start(machine, (x,), back, (x, index))
    return finish(node, machine.run("gather", (x, index), index.shape, dtype))
