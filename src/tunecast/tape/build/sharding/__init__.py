"""How one rank of many holds a model: replicas, shards, and what waits on the host. A scheme a file.

    scheme.py      what a stack's loop asks; alone on a card it is this     nested.py   tensors in tuples
    ddp.py         DistributedDataParallel                                  shards.py   a parameter's part and whole
    fsdp2.py       torch's `fully_shard` of a model; unit.py: of one unit, its streams and lifetimes
    accelerate.py  FSDP2 as accelerate wraps a transformers model; accelerate1.py: FSDP1, of fsdp1.py's flat parameters
    zero.py        DeepSpeed's ZeRO-1 and ZeRO-2; zero3.py: ZeRO-3; deepspeed.py: their bucket sizes
    ulysses.py     DeepSpeed's split of rows, beside its ZeRO                host.py     an optimizer on the host
    tensor.py, context.py, layers.py   other dimensions of the mesh; device_map.py: which card gets which layers

The seam. A stack's `train` asks for the job's scheme and goes on as before; parameters are then this rank's parts, and
optimizer, clipping and accumulation follow from that. No stack divides by the number of ranks.

    scheme = machine.scheme = scheme_of(job, machine)
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
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.tensor import Machine

__all__ = ["Scheme", "ranks_of", "scheme_of"]


def scheme_of(job: Job, machine: Machine) -> Scheme:
    """The way of a job whose stack trains through accelerate (transformers, TRL, Axolotl, LLaMA-Factory)."""
    kind, ranks = job.parallel.data, ranks_of(job)
    if kind.startswith("zero"):
        from tunecast.tape.build.sharding.zero import Zero12
        from tunecast.tape.build.sharding.zero3 import Zero3

        return (Zero3 if kind == "zero3" else Zero12)(job, machine)
    if job.parallel.layers > 1:
        from tunecast.tape.build.sharding.layers import OneCardOfSeveral

        return OneCardOfSeveral(job, machine)
    if ranks == 1:
        return Scheme(job, machine)
    if kind == "ddp":
        from tunecast.tape.build.sharding.ddp import Replicas

        return Replicas(job, machine)
    if (job.parallel.fsdp_version or machine.era.fsdp_version) == 1:
        from tunecast.tape.build.sharding.accelerate1 import AccelerateFsdp1

        return AccelerateFsdp1(job, machine)
    from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
    from tunecast.tape.build.sharding.fsdp2 import Mesh

    shard = min(ranks, job.hardware.gpus) if kind == "hsdp" else ranks
    return AccelerateFsdp2(job, machine, Mesh(shard, ranks // shard))
