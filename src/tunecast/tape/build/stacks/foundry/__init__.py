"""llm-foundry's training of MPT with Composer (llm-foundry 0.4, mosaicml 0.17): `scripts/train/train.py`.

    flash1.py     flash-attn 1 on paper (flash_attn_interface.py and csrc/flash_attn/fmha_api.cpp of 1.0.9)
    model.py      MPT as llm-foundry 0.4 writes it
    sharding.py   Composer's FSDP on paper (composer/trainer/dist_strategy.py of mosaicml 0.17.1)

Composer splits a batch into micro-batches, runs forward and loss under autocast and clips what its FSDP summed.
Weights are float32; under FSDP they are gathered in autocast's dtype (`mixed_precision: DEFAULT` or `PURE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.releases import minor
from tunecast.tape.build.autograd import Gradients, Node, backward, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import bring
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.sharding import Scheme
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model
from tunecast.tape.build.stacks.foundry.model import MPT, Block, mpt_config
from tunecast.tape.build.stacks.foundry.sharding import scheme_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase

REFUSES: Refusals = {
    "method": lambda job: job.method != "full",
    **leaves_out("compile", "matmul_dtype", "kernels", "loss", "optimizer_in_backward", "offload_activations"),
    **leaves_out("transformers_version"),
}
NEWEST = FLASH_2 = (0, 4)
"""The release written down, and the first to take flash-attn 2 (setup.py); those before differ in nothing else here."""
UNTRACED = "llm-foundry's MPT follows its source; none of it was traced"
ATTENTION = "attention: llm-foundry's flash is taken"


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    known = mpt_config(config)
    return None if known is None else MPT(machine, known)


def scheme(job: Job, machine: Machine) -> Scheme:
    return scheme_of(job, machine)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    machine.guesses[UNTRACED] = None
    if job.attention != "flash_attention_2":
        machine.assumptions[ATTENTION] = None
    scheme = machine.scheme
    with scheme.loading():
        mpt = load(job, config, machine)
    scheme.wrap(mpt)
    parameters = scheme.parameters(mpt)
    optimizer = optimizer_of(job, parameters)
    take_steps(job, mpt, parameters, optimizer, lengths)
    machine.end()


def optimizer_of(job: Job, parameters: Sequence[Tensor]) -> Optimizer:
    """AdamW is Composer's own (`decoupled_adamw`)."""
    if job.optimizer.startswith("adamw_torch"):
        return DecoupledAdamW(parameters)
    return make_optimizer(job, parameters)


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> MPT:
    known = mpt_config(config)
    release = NEWEST if job.stack_version is None else minor(job.stack_version)
    if known is None:
        raise no_such_model(job.stack, config.get("model_type"))
    longest = max(job.lengths or (job.seq_len,))
    mpt = MPT(machine, {**known, "max_seq_len": max(known["max_seq_len"], longest)})
    mpt.name_all()
    machine.name_head(mpt.path, "lm_head")
    for module in mpt.modules():
        for tensor in module.own.values():
            if tensor.storage is None:
                bring(tensor, module.path)
    for block in mpt.blocks:
        assert isinstance(block, Block)
        block.checkpoint = job.gradient_checkpointing
        block.attn.first_generation = release < FLASH_2
    return mpt


def take_steps(job: Job, mpt: MPT, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int]) -> None:
    """composer/trainer/trainer.py, `_train_microbatches` and `_train_microbatch`."""
    machine, scheme = mpt.machine, mpt.machine.scheme
    for step, length in enumerate(lengths):
        machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
        for number in range(job.grad_accum):
            machine.take_turn(number)
            batch = machine.run("_to_copy", (), (job.micro_batch, length), INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with machine.autocasting(scheme.autocast):
                logits = mpt(batch)
                targets = machine.run("roll", (batch,), batch.shape, INT64)
                machine.launch("fill_", (), INT64, job.micro_batch * INT64.itemsize)
                loss = fused_cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
            del logits
            loss = loss * (1 / job.grad_accum)
            backward(loss)
        if job.max_grad_norm:
            scheme.clip(parameters)
        machine.phase = Phase.OPTIMIZER
        optimizer.step()
        machine.phase, machine.module = Phase.OTHER, ""
        optimizer.zero_grad()
        del loss, batch, targets
    machine.step = len(lengths)


def fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """flash_attn.losses.cross_entropy of 2.3, `inplace_backward=True`: the gradient takes the logits' place."""
    machine, rows = logits.machine, logits.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        logits = node.take(0)
        machine.launch("cross_entropy_bwd", (logits, gradients[0]), logits.dtype, logits.nbytes)
        return (logits,)

    node = start(machine, (logits,), back)
    machine.launch("cross_entropy_fwd", (logits, labels), logits.dtype, 2 * rows * FLOAT32.itemsize)
    losses = machine.tensor((rows,), FLOAT32)
    lse = machine.tensor((rows,), FLOAT32)
    losses = finish(node, losses, logits, lse, labels)
    del lse
    counted = machine.run("ne", (labels,), labels.shape, BOOL).sum(0, dtype=INT64)
    return losses.sum() / counted


class DecoupledAdamW(Optimizer):
    """composer/optim/decoupled_weight_decay.py: one parameter at a time, one operation at a time. The count of steps
    is on the card, and the host waits to read it."""

    def step(self) -> None:
        machine = self.machine
        for p in self.trained():
            if id(p) not in self.state:
                like = (p.shape, p.dtype)
                self.state[id(p)] = self.made(p, ((), FLOAT32), like, like)
            machine.module = self.module_of(p)
            machine.launch("add_", (self.state[id(p)][0],), FLOAT32, FLOAT32.itemsize)
        for p in self.trained():
            machine.module = self.module_of(p)
            _, exp_avg, exp_avg_sq = self.state[id(p)]
            grad = p.grad
            assert grad is not None
            machine.launch("_local_scalar_dense", (), FLOAT32, 0)
            machine.launch("mul_", (p,), p.dtype, p.nbytes)
            machine.launch("mul_", (exp_avg,), p.dtype, p.nbytes)
            machine.launch("add_", (exp_avg, grad), p.dtype, p.nbytes)
            machine.launch("mul_", (exp_avg_sq,), p.dtype, p.nbytes)
            machine.launch("addcmul_", (exp_avg_sq, grad, grad), p.dtype, p.nbytes)
            root = exp_avg_sq.sqrt()
            denom = root / 1.0  # the root of the second moment's correction
            del root
            machine.launch("add_", (denom,), p.dtype, p.nbytes)
            machine.launch("addcdiv_", (p, exp_avg, denom), p.dtype, p.nbytes)
            del denom
        machine.module = ""
