"""FSDP 2 under a pipeline: a stage's weights are gathered once per step, its gradients added up whole and reduced last.

After torch 2.13, torch/distributed/pipelining/stage.py, `backward_maybe_with_nosync`, `run_post_backward`; NeMo
Automodel does the same by hand for models with experts (components/moe/fsdp_mixin.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from tunecast.tape.build.sharding.accelerate import AccelerateFsdp2
from tunecast.tape.build.sharding.fsdp2 import ParamGroup
from tunecast.tape.build.sharding.unit import SCATTER, Doing


class PipelinedFsdp2(AccelerateFsdp2):
    holds = False

    def hold_units(self) -> None:
        """Once the model is wrapped."""
        for unit in self.sharder.units:
            self.hold(unit)

    def hold(self, unit: ParamGroup) -> None:
        """Between the first and the last micro-batch of a step weights stay whole (`set_reshard_after_backward`)."""
        reshard = unit.reshard

        def unless_held() -> None:
            if not self.holds:
                reshard()

        object.__setattr__(unit, "reshard", unless_held)

    def end_stage(self, modules: Collection[int]) -> None:
        """torch/distributed/pipelining/stage.py, `run_post_backward`: after a stage's last micro-batch what has been
        added up is reduced. `modules` are the stage's, by id."""
        sharder = self.sharder
        self.holds, sharder.reduces = False, True
        for unit in sharder.units:
            if unit.shards and id(unit.modules[0]) in modules:
                unit.post_backward()
                unit.group_does = Doing.NOTHING
                unit.finish()
        self.machine.wait(SCATTER)
        sharder.scattering.clear()
        self.holds, sharder.reduces = True, False

    @contextlib.contextmanager
    def pipelined(self) -> Iterator[None]:
        """A step's micro-batches: weights stay whole, gradients are added up."""
        self.holds, self.sharder.reduces = True, False
        try:
            yield
        finally:
            self.holds, self.sharder.reduces = False, True
