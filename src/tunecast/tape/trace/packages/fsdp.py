"""FSDP2 (`fully_shard`) is Python on top of torch and is traced as it is; its blocks only need names.

It gathers a group's parameters into a staging buffer (on a stream of its own in the forward pass), copies them out
into full parameters, computes, and scatters the summed gradients through a second staging buffer. The streams it
switches to are seen by `cuda.Stream`; the references that keep a buffer alive until the next collective has started
are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tunecast.tape.op import Role
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    def name_blocks(module: ModuleType) -> None:
        group = module.FSDPParamGroup
        group.unshard = naming(group.unshard, Role.TEMPORARIES)
        group.wait_for_unshard = naming(group.wait_for_unshard, Role.WEIGHTS)
        group.post_backward = naming(naming_gradients(group.post_backward), Role.TEMPORARIES)

    def naming(method: Callable[..., Any], role: Role) -> Callable[..., Any]:
        """What the method allocates and nobody else names has this role; whose it is, if not clear, is the group's."""

        @functools.wraps(method)
        def run(group: Any, *args: Any, **kwargs: Any) -> Any:
            first = len(recorder._blocks)
            result = method(group, *args, **kwargs)
            for number in range(first, len(recorder._blocks)):
                block = recorder._blocks[number]
                block.role = block.role or role
                block.module = block.module or recorder.scopes.name_of(group.modules[0])
            return result

        return run

    def naming_gradients(method: Callable[..., Any]) -> Callable[..., Any]:
        """Whole gradients live until they are scattered, or over several micro-batches; both are gradients."""

        @functools.wraps(method)
        def run(group: Any, *args: Any, **kwargs: Any) -> Any:
            name_whole_gradients(recorder, group)
            result = method(group, *args, **kwargs)
            name_whole_gradients(recorder, group)
            return result

        return run

    after_import("torch.distributed.fsdp._fully_shard._fsdp_param_group", name_blocks)


def name_whole_gradients(recorder: Recorder, group: Any) -> None:
    """In a function of its own: a name left bound here would keep a gradient alive longer than FSDP does."""
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        for gradient in (parameter.unsharded_accumulated_grad, None if whole is None else whole.grad):
            if gradient is not None:
                recorder.set_role(getattr(gradient, "_local_tensor", gradient), Role.GRADIENTS)
