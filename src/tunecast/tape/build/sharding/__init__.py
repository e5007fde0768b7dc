"""How one rank of many holds a model: replicas, shards, and what waits on the host. A scheme a file.

accelerate.py  FSDP2 and FSDP 1 the way accelerate wraps a transformers model
ddp.py         replicas: torch's DistributedDataParallel on paper, as transformers' Trainer makes it
deep_ep.py     Axolotl's expert parallelism on paper: tokens go to the ranks that have their experts, by DeepEP's
               kernels
fetched.py     weights of ZeRO-3: who fetches them and when, and when they are let go
flat_parts.py  what a flat parameter of FSDP 1 is made of
flat_unit.py   one flat parameter of FSDP 1
fsdp1.py       FSDP 1 on paper
fsdp2.py       torch's `fully_shard` (FSDP2) on paper, also beside experts that are spread over ranks
host.py        what waits in host memory while the card computes
layers.py      layers spread over cards: which card of `device_map="auto"` gets which, and what each card holds
pipelined.py   FSDP 2 under a pipeline: a stage's weights are gathered once per step, its gradients added up whole and
               reduced last
ring_flash.py  Axolotl's context parallelism on paper: a rank has a part of each row, and gathers keys and values head
               by head
scheme.py      what a stack's loop asks of the way its rank holds the model; see the package's docstring
second.py      A second model that is only asked, beside the one that is trained: how a rank holds it
sequence.py    A sequence over ranks: torch's context parallelism, and DeepSpeed's Ulysses
shards.py      a parameter in two forms: the part this rank keeps, and the whole that comes and goes
tensor.py      tensor parallelism on paper
unit.py        one unit of FSDP2
zero.py        DeepSpeed's ZeRO-1 and ZeRO-2 on paper
zero3.py       DeepSpeed's ZeRO-3 on paper: weights too are cut, and come whole when a module runs
zero_sizes.py  how large DeepSpeed's buckets are

The seam. A stack's `train` asks for the job's scheme and goes on as before; parameters are then this rank's parts, and
optimizer, clipping and accumulation follow from that. No stack divides by the number of ranks.

    scheme = machine.scheme                                    # made by the stack's `scheme`, when first asked for
    with scheme.loading(): model = load(...); adapt(...)       # on the host where weights are cut before they arrive
    scheme.wrap(model)
    parameters = scheme.parameters(model)
    optimizer = scheme.optimizer(parameters, ...)
    for each micro-batch:
        with scheme.micro_batch(last=...):
            scheme.begin_forward()
            with machine.autocasting(scheme.autocast): outputs = model(...)
            outputs = scheme.end_forward(outputs)
            backward(loss)
    scheme.clip(parameters); optimizer.step()

A stack with a wrapping of its own builds on `fsdp2.FullyShard` (or fsdp1) directly and derives from `Scheme`.
Parameters without storage (on torch's meta device) may be cut too: their parts are then all that is ever made.
Collectives are operations of the tape on the streams they use (`Machine.collective`, `Machine.wait`); groups are named
data, shard and replicate.
"""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of

__all__ = ["Scheme", "ranks_of", "scheme_of"]


def scheme_of(job: Job, machine: Machine) -> Scheme:
    """The way of a job whose stack trains through accelerate (transformers, TRL, Axolotl, LLaMA-Factory)."""
    made = _sharding_scheme(job, machine)
    if job.parallel.context > 1 and made.sequence is None:
        from tunecast.tape.build.sharding.ring_flash import GatheredHeads

        made.sequence = GatheredHeads(machine, job.parallel.context, job.data.packing)
    return made


def _sharding_scheme(job: Job, machine: Machine) -> Scheme:
    """Ranks that share a row hold the model as others do."""
    sharding, ranks = sharding_of(job), ranks_of(job) * job.parallel.context
    if sharding.is_zero:
        from tunecast.tape.build.sharding.zero import Zero12
        from tunecast.tape.build.sharding.zero3 import Zero3

        return (Zero3 if sharding.cuts_weights else Zero12)(job, machine)
    if job.parallel.layers > 1:
        from tunecast.tape.build.sharding.layers import OneCardOfSeveral

        return OneCardOfSeveral(job, machine)
    if ranks == 1:
        return Scheme(job, machine)
    if sharding.is_replicated:
        from tunecast.tape.build.sharding.ddp import Replicas

        return Replicas(job, machine)
    if (job.parallel.fsdp_version or machine.era.fsdp_version) == 1:
        from tunecast.tape.build.sharding.accelerate import AccelerateFsdp1

        return AccelerateFsdp1(job, machine)
    from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
    from tunecast.tape.build.sharding.unit import mesh_of_ranks

    return AccelerateFsdp2(job, machine, mesh_of_ranks(job, ranks))
