"""torchtune's distributed recipes on paper (0.6.1, recipes/full_finetune_distributed.py): FSDP2 without a policy.

Weights stay in their dtype, gradients are summed in it, after every micro-batch. A unit a layer; the files for full
training of Llama 3 and later also name the embedding and the head (`custom_sharded_layers`). The model itself, with
what is left, is given back after the forward pass like the others (`shard_model`). A head that is called chunk by chunk
is gathered for each, in both passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
from tunecast.tape.build.sharding.fsdp2 import FullyShard, Mesh
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.stacks import Refusals, leaves_out

Rule = Callable[[Job], bool]
REFUSED_TOGETHER: Refusals = {
    "quantization": lambda job: job.quantization.format is not None,
    **leaves_out("optimizer_in_backward", "offload_activations"),
    "optimizer": lambda job: job.optimizer not in ("adamw_torch", "adamw_torch_fused", "sgd"),
}
"""What is not known of several cards."""


def on_several(rule: Rule) -> Rule:
    return lambda job: ranks_of(job) > 1 and rule(job)


class Wrapped(Module):
    """Recomputation wraps a compiled layer, and FSDP takes the wrapper: its hooks are outside of both."""

    def __init__(self, layer: Module) -> None:
        super().__init__(layer.machine)
        self.layer = layer
        self.path = layer.path

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)


class TuneFsdp(AccelerateFsdp2):
    def __init__(self, job: Job, machine: Machine) -> None:
        Scheme.__init__(self, job, machine)
        self.sharder = FullyShard(machine, Mesh(ranks_of(job)), on_host=job.parallel.offload == "parameters")

    def wrap(self, model: Any) -> None:
        sharder, reshards = self.sharder, self.job.parallel.reshard_after_forward
        for name, layer in list(model.layer_list.children.items()):
            wrapped = Wrapped(layer)
            setattr(model.layer_list, name, wrapped)
            sharder.shard([wrapped], reshards)
        if self.job.method == "full":
            for end in (model.output, model.tok_embeddings):
                if end.own:  # a head that is the embedding has none
                    sharder.shard([end], reshards)
        sharder.shard_root(model)
        assert sharder.root is not None
        sharder.root.reshards = reshards

    def micro_batch(self, last: bool) -> Any:
        return Scheme.micro_batch(self, last)
