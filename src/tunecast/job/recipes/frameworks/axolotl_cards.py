"""How Axolotl shares a job among cards, and which kernels it puts in."""

from __future__ import annotations

from math import prod
from pathlib import PurePath

from tunecast.job.kernels import by_whole
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.axolotl_keys import LIGER, LORA_KERNELS, SHIPPED, is_on, plugins_of
from tunecast.job.recipes.parts.deepspeed import put_stage, take_deepspeed
from tunecast.job.recipes.parts.fsdp import take_fsdp
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.values import switch, whole, word


def take_sharing(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    path, fsdp = keys.get("deepspeed"), keys.get("fsdp")
    inner = keys.document.inside("fsdp_config")
    version = whole(keys.get("fsdp_version"))
    if path:
        name = PurePath(path).stem if isinstance(path, str) else ""
        if request.open(path) is None and name in SHIPPED:
            take_shipped(draft, keys, name)
        else:
            take_deepspeed(draft, keys, "deepspeed", request)
    elif is_on(fsdp) or (inner is not None and inner.tree):
        take_fsdp(draft, keys, version=version or 1, name="fsdp" if is_on(fsdp) else "fsdp_config")
        if version and "parallel.fsdp_version" not in draft.places:
            draft.put("parallel.fsdp_version", version, keys, "fsdp_version")
        take_fsdp_words(draft, keys, fsdp)
        draft.assume("parallel.state_dict_type", "full")
        keys.ignore("fsdp_config.cpu_offload_pin_memory", "fsdp_config.fsdp_cpu_offload_pin_memory")
    elif keys.get("fsdp_config") is not None:
        keys.ignore("fsdp_config")


def take_fsdp_words(draft: Draft, keys: Keys, fsdp: object) -> None:
    """`fsdp: [full_shard, auto_wrap, offload]`, the older way."""
    words = [word(each) for each in fsdp] if isinstance(fsdp, list) else word(fsdp).split()
    if "offload" in words:
        draft.put("parallel.offload", "parameters", keys, "fsdp")
    if "shard_grad_op" in words and "parallel.reshard_after_forward" not in draft.places:
        draft.put("parallel.reshard_after_forward", False, keys, "fsdp")
    if {"hybrid_shard", "hybrid_shard_zero2"} & set(words):
        draft.put("parallel.data", "hsdp", keys, "fsdp")


def take_shipped(draft: Draft, keys: Keys, name: str) -> None:
    stage, offload = SHIPPED[name]
    put_stage(draft, keys, stage, "deepspeed")
    if offload != "none":
        draft.put("parallel.offload", offload, keys, "deepspeed")
    if name.endswith("_params"):
        draft.not_modelled(keys, "deepspeed", "weights wait in host memory, and the optimizer's states do not")
    if name.endswith("_compile"):
        draft.not_modelled(keys, "deepspeed", "torch.compile under DeepSpeed")


def take_mesh(draft: Draft, keys: Keys) -> None:
    for field, names in (
        ("parallel.tensor", ("tensor_parallel_size",)),
        ("parallel.context", ("context_parallel_size", "sequence_parallel_degree")),
        ("parallel.expert", ("expert_parallel_size",)),
    ):
        size = keys.get(*names)
        if size is not None and whole(size) not in (0, 1):
            draft.put(field, size, keys, *names)
    take_spread_experts(draft, keys)
    copies = whole(keys.get("dp_replicate_size"))
    if copies is not None and copies > 1 and draft.fields.get("parallel.data") == "fsdp":
        draft.put("parallel.data", "hsdp", keys, "dp_replicate_size")
    kwargs = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
    draft.take("parallel.sync_each_batch", keys, kwargs)
    keys.ignore("accelerator_config")
    if is_on(keys.document.get("use_ray")):
        draft.take("hardware.gpus", keys, "ray_num_workers")
    keys.ignore("ray_num_workers")
    finds, cards = is_on(keys.document.get("ddp_find_unused_parameters")), whole(draft.fields.get("hardware.gpus")) or 1
    if finds and cards > 1 and draft.fields.get("parallel.data") in (None, "ddp"):
        draft.not_modelled(keys, "ddp_find_unused_parameters", "DDP looks for weights without a gradient")
    keys.ignore("ddp_find_unused_parameters")


NVL_BYTES = 256 * 2**20
"""axolotl/integrations/expert_parallel/args.py, `expert_parallel_num_nvl_bytes`."""


def take_spread_experts(draft: Draft, keys: Keys) -> None:
    """All cards together are the product of what is split (`_resolve_ep_group`). DeepEP's buffers are not torch's."""
    sizes = [whole(keys.document.get(name)) or 1 for name in SPLIT]
    if "expert_parallel" not in plugins_of(keys) or sizes[0] == 1:
        draft.drop("parallel.expert")
        return
    draft.put("hardware.gpus", prod(sizes), keys, SPLIT[0])
    nvl, rdma = (whole(keys.get(f"expert_parallel_num_{kind}_bytes")) for kind in ("nvl", "rdma"))
    draft.put("hardware.reserve_bytes", (NVL_BYTES if nvl is None else nvl) + (rdma or 0), keys, SPLIT[0])
    keys.ignore("expert_parallel_backend", "expert_parallel_fallback_on_unsupported")


SPLIT = ("expert_parallel_size", "dp_shard_size", "tensor_parallel_size", "context_parallel_size")


def take_kernels(draft: Draft, keys: Keys) -> None:
    """LoRA's own kernels are on where nothing speaks against them (`check_auto_enable_lora_kernels`)."""
    plugins, chosen, names = plugins_of(keys), list[str](), list[str]()
    for name, kernel in LIGER.items():
        if is_on(keys.get(name)) and "liger" in plugins and kernel not in chosen:
            chosen.append(kernel)
            names.append(name)
    chosen = by_whole(chosen)
    if "cut_cross_entropy" in plugins and switch(keys.get("cut_cross_entropy")) is not False:
        chosen.append("cut_cross_entropy")
        names.append("plugins")
    keys.get("cut_cross_entropy")
    given = [name for name in LORA_KERNELS if keys.get(name) is not None]
    keys.get("lora_embedding_kernel")
    by_itself = not given and fuses_adapters(draft, keys)
    if by_itself or any(is_on(keys.get(name)) for name in given):
        chosen.append("lora_triton")
        names += given
    if names:
        draft.put("kernels", chosen, keys, *names)
    else:
        draft.assume("kernels", chosen)
    experts = word(keys.get("experts_implementation"))
    if experts not in ("", "grouped_mm"):
        draft.not_modelled(keys, "experts_implementation", "kernels of experts' layers")
    if is_on(keys.document.get("use_kernels")) and "kernels" not in plugins:
        draft.not_modelled(keys, "use_kernels", "kernels of the Hub take the place of layers")
    keys.ignore("use_kernels")


def fuses_adapters(draft: Draft, keys: Keys) -> bool:
    is_adapter = draft.fields.get("method") in ("lora", "qlora")
    in_eight_bits = draft.fields.get("quantization.format") == "int8"
    against = ("rl", "trust_remote_code", "nvfp4_merge_aware")
    is_flat = draft.fields.get("parallel.data") == "fsdp" and draft.fields.get("parallel.fsdp_version") == 1
    return (
        is_adapter and not in_eight_bits and not is_flat and not any(is_on(keys.document.get(each)) for each in against)
    )
