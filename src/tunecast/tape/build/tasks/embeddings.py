"""Embeddings and rerankers on paper: sentence-transformers' SentenceTransformerTrainer with
MultipleNegativesRankingLoss, and its CrossEncoderTrainer with BinaryCrossEntropyLoss (sentence-transformers 6.2.0).

A text's embedding is its last token's hidden state. A sample is two texts, an anchor and what it is to be near to. Each
column of a batch is a forward pass of its own, whose graphs live together until the loss compares every anchor with all
others. A reranker reads a query and a document as one row, and its classifier has one output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

from tunecast.job.job import Job
from tunecast.records import NamedTuple, replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.score import gather, rows_at, save_whole, use_own_forward, without_head
from tunecast.tape.build.stacks import Refusals, trainer, trl
from tunecast.tape.build.stacks.trainer import Batch, take_steps
from tunecast.tape.build.stacks.transformers import Making, prepared, scheme
from tunecast.tape.build.tasks import heads
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in

__all__ = ["REFUSES", "making", "model", "save_beside_adapters", "scheme", "setup", "train"]

REFUSES: Refusals = trainer.REFUSES
TAKEN = (
    "task embed: sentence-transformers' trainer is taken: an anchor and a positive text of each sample, each of "
    "seq_len tokens, the last token's hidden state, MultipleNegativesRankingLoss; its cached losses take less memory"
)


SCORED = (
    "task rerank: sentence-transformers' CrossEncoderTrainer with BinaryCrossEntropyLoss is taken, of a classifier: a "
    "query and a document in one row; of a language model it would read scores off the vocabulary"
)


ANCHORS = "task embed: of a pair the anchor is taken to have the images; nobody traced them"


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    made = model_of(machine, config)
    return None if made is None else without_head(made)


def making(job: Job) -> Making:
    """The job's own model, of a config.json."""
    return model if job.task == "embed" else heads.making(job)


def save_beside_adapters(model: Any) -> None:
    if isinstance(model.score, Linear):
        save_whole(model)


def setup(job: Job, given: Setup) -> Setup:
    return trl.setup(job, given)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    machine.guesses[TAKEN if job.task == "embed" else SCORED] = None
    if machine.pictures is not None:
        machine.guesses[ANCHORS if job.task == "embed" else heads.IMAGES] = None
    made, parameters, optimizer = prepared(job, config, machine, adapting, in_trainer=True, making=making(job))
    if job.task == "embed":
        made.forward = MethodType(forward, made)
        take_steps(job, made, parameters, optimizer, lengths, compute_loss, columns, counts_labels=False)
    else:
        use_own_forward(made)
        pairs = Pairs()
        take_steps(job, made, parameters, optimizer, lengths, pairs.compute_loss, pairs.collated, counts_labels=False)
    machine.end()


def adapting(job: Job, model: Any) -> None:
    """`SentenceTransformer.add_adapter`: transformers' own, which leaves adapters in the weights' dtype."""
    adapt(replace_unchecked(job, lora=replace_unchecked(job.lora, adapter_dtype=job.weights_dtype)), model)
    if job.method != "full":
        save_beside_adapters(model)


def columns_of(job: Job) -> int:
    """An anchor, what it is to be near to, and what it is to be far from, each a column."""
    return 2 + job.head.negatives


def columns(job: Job, machine: Machine, length: int) -> Batch:
    """Tokens and mask of each text; the anchors have the images."""
    texts = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2 * columns_of(job))]
    return *texts, *image_tensors(machine, job.micro_batch, length)


class Features(NamedTuple):
    """What the modules of a SentenceTransformer add to a column; the trainer holds it until the loss is there."""

    token_embeddings: Tensor
    sentence_embedding: Tensor


def forward(self: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Features:
    token_embeddings = first_of(self.base()(input_ids, attention_mask=attention_mask, **images))
    output_vectors = [last_tokens(token_embeddings, attention_mask)]
    return Features(token_embeddings, F.cat(output_vectors, -1))


def last_tokens(token_embeddings: Tensor, attention_mask: Tensor) -> Tensor:
    """sentence_transformers/sentence_transformer/modules/pooling.py, `Pooling._forward_padded`, lasttoken."""
    machine, (bs, _, hidden_dim) = token_embeddings.machine, token_embeddings.shape
    flipped = machine.run("flip", (attention_mask,), attention_mask.shape, INT64)
    values, indices = machine.run_many("max", (flipped,), (((bs,), INT64),) * 2, args=(flipped, 1))
    del flipped
    indices = F.where(values.eq(0), indices, indices)
    gather_indices = (indices - 1).unsqueeze(-1).unsqueeze(1).expand(bs, 1, hidden_dim)
    mask = attention_mask.unsqueeze(-1).expand(*token_embeddings.shape).to(token_embeddings.dtype)
    return gather(token_embeddings * mask, gather_indices).squeeze(1)


def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
    features: list[Features] = []
    images: dict[str, Tensor] = images_in(model.machine, inputs[2 * columns_of(job) :])
    embeddings = []
    for place in range(0, 2 * columns_of(job), 2):
        embeddings.append(embed(model, inputs[place], inputs[place + 1], features, **images))
        images = {}
    return ranking_loss(embeddings)


def embed(model: Any, input_ids: Tensor, attention_mask: Tensor, features: list[Features], **images: Tensor) -> Tensor:
    """`embed_columns` of one column; outputs are widened where autocast was on, those of every token too."""
    scheme = model.machine.scheme
    scheme.begin_forward()
    with model.machine.autocasting(scheme.autocast):
        features.append(model(input_ids, attention_mask, **images))
    widened = features[-1]
    if scheme.autocast is not None:
        widened = Features(*[tensor.float() for tensor in features[-1]])
    return scheme.end_forward(widened).sentence_embedding


def ranking_loss(embeddings: Sequence[Tensor]) -> Tensor:
    """sentence_transformers/sentence_transformer/losses/multiple_negatives_ranking.py,
    `MultipleNegativesRankingLoss.compute_loss_from_embeddings`."""
    queries, docs = embeddings[0], embeddings[1:]
    machine, batch_size = queries.machine, queries.shape[0]
    docs_all = F.cat(docs, 0)
    docs_pos = docs[0]
    local_indices = machine.run("arange", (), (batch_size,), INT64)
    row_indices = machine.run("arange", (), (batch_size,), INT64)
    local_queries = queries[local_indices]
    local_docs = docs_pos[local_indices]
    query_to_doc = cos_sim(local_queries, docs_all)
    query_to_doc = query_to_doc * SCALE
    positive_scores = rows_at(query_to_doc, row_indices, local_indices)
    scores = F.cat([query_to_doc], 1)
    log_z = F.logsumexp(scores, 1)
    loss = -(positive_scores - log_z).mean(0)
    del local_docs
    return loss


SCALE = 20.0


def cos_sim(a: Tensor, b: Tensor) -> Tensor:
    a_norm = normalize(a)
    b_norm = normalize(b)
    return F.mm(a_norm, b_norm.transpose(0, 1))


def normalize(x: Tensor) -> Tensor:
    """`torch.nn.functional.normalize`."""
    denom = norm(x).clamp(1e-12).expand(*x.shape)
    return x / denom


def norm(x: Tensor) -> Tensor:
    """Of each row (torch/csrc/autograd/FunctionsManual.cpp, `linalg_vector_norm_backward`)."""
    machine, shape, dtype = x.machine, (x.shape[0], 1), x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        by_norm = node.take(0) / node.take(1)
        is_zero = node.take(1).eq(0)
        machine.launch("masked_fill_", (by_norm, is_zero), dtype, by_norm.nbytes)
        return (gradients[0] * by_norm,)

    node = start(machine, (x,), back, (x,))
    out = machine.run("linalg_vector_norm", (x,), shape, dtype, args=(x, 2.0, (1,), True))
    return finish(node, out, out.detach())


# ---------------------------------------------------------------------------------------------------------- rerankers


class Pairs:
    """Batches of texts, which the loss itself makes tokens of."""

    def __init__(self) -> None:
        self.length = 0

    def collated(self, job: Job, machine: Machine, length: int) -> Batch:
        """Labels alone are tensors."""
        self.length = length
        return (machine.run("_to_copy", (), (job.micro_batch,), FLOAT32),)

    def compute_loss(self, job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
        """sentence_transformers/cross_encoder/losses/binary_cross_entropy.py, `BinaryCrossEntropyLoss.forward`."""
        machine, (labels,) = model.machine, inputs
        tokens = [machine.run("_to_copy", (), (job.micro_batch, self.length), INT64) for _ in range(2)]
        images = image_tensors(machine, job.micro_batch, self.length)
        logits = heads.logits_of(model, (tokens[0], tokens[1], *images)).view(-1)
        return binary_cross_entropy(logits, labels)


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`BCEWithLogitsLoss`: a mean (torch/csrc/autograd/FunctionsManual.cpp,
    `binary_cross_entropy_with_logits_backward`)."""
    machine = logits.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return ((node.take(0).sigmoid() - node.take(1)) * gradients[0],)

    node = start(machine, (logits,), back, (logits, labels))
    return finish(node, machine.run("binary_cross_entropy_with_logits", (logits, labels), (), logits.dtype))
