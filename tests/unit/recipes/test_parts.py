"""accelerate's YAML, DeepSpeed's JSON and the keys of FSDP: alone, and pointed to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.readers import read_job
from tunecast.job.recipes import Draft, Recipe, find_recipe
from tunecast.job.recipes.document import json_document, yaml_document
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.parts.deepspeed import read_deepspeed, take_deepspeed
from tunecast.job.recipes.parts.fsdp import take_fsdp
from tunecast.job.recipes.request import Launch, ReadRequest
from tunecast.job.recipes.values import number, switch, whole, word

ZERO_3: Mapping[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
}


def deepspeed(values: Mapping[str, Any], **fields: Any) -> tuple[Draft, Recipe]:
    """What a DeepSpeed file says, behind an outer file that said these fields."""
    draft = Draft("outer", "1.0")
    outer = draft.keys(yaml_document("here: 1", "outer.yaml"))
    for field, value in fields.items():
        draft.put(field.replace("__", "."), value, outer, "here")
    document = json_document(json.dumps(values), "ds.json")
    read_deepspeed(draft, document, ReadRequest(document, Path(".")))
    return draft, draft.finish()


def accelerate(text: str, **fields: Any) -> Recipe:
    draft = Draft("outer", "1.0")
    outer = draft.keys(yaml_document("here: 1", "outer.yaml"))
    for field, value in fields.items():
        draft.put(field.replace("__", "."), value, outer, "here")
    document = yaml_document(text, "accelerate.yaml")
    read_accelerate(draft, document, ReadRequest(document, Path(".")))
    return draft.finish()


def unread(recipe: Recipe) -> dict[str, str]:
    return {each.key: each.why for each in recipe.not_understood if each.key != "here"}


class TestValues:
    def test_a_number_that_yaml_takes_for_a_text(self) -> None:
        assert (number("1e9"), whole("1e9"), whole(5e8), whole("2.5")) == (1e9, 10**9, 500_000_000, None)

    @pytest.mark.parametrize("junk", [None, [], {}, True, "auto", "nan", float("nan"), float("inf"), 10**400])
    def test_what_is_none(self, junk: object) -> None:
        assert number(junk) is None and whole(junk) is None

    def test_switches_and_words(self) -> None:
        assert (switch("True"), switch(0), switch("auto"), switch([])) == (True, False, None, None)
        assert (word(False), word(" FSDP "), word(None), word({})) == ("no", "fsdp", "", "")


class TestDeepSpeed:
    def test_alone_it_is_a_training_without_a_model(self, tmp_path: Path) -> None:
        file = tmp_path / "ds.json"
        file.write_text(json.dumps(ZERO_3))
        recipe = find_recipe(file)
        assert recipe is not None and recipe.framework == "deepspeed"
        assert recipe.job["parallel"] == {"data": "zero3", "offload": "optimizer"}
        with pytest.raises(TunecastError, match="names no model, and no training by itself") as raised:
            read_job(str(file))
        assert raised.value.field == "task"
        assert read_job(str(file), {"model": "llama-3.1-8b", "hardware.gpus": 2}).parallel.offload == "optimizer"

    def test_auto_is_the_outer_files(self) -> None:
        _, recipe = deepspeed(ZERO_3, micro_batch=4, grad_accum=2, max_grad_norm=0.3, autocast="bfloat16")
        assert [recipe.job[name] for name in ("micro_batch", "grad_accum", "max_grad_norm", "autocast")] == [
            4, 2, 0.3, "bfloat16",
        ]  # fmt: skip
        assert recipe.places["parallel.data"].key == "zero_optimization.stage" and not unread(recipe)

    def test_numbers_count_where_the_outer_file_says_none(self) -> None:
        values = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "8", "gradient_clipping": 1}
        _, recipe = deepspeed({**values, "fp16": {"enabled": True}})
        assert (recipe.job["micro_batch"], recipe.job["grad_accum"], recipe.job["autocast"]) == (2, 8, "float16")
        _, recipe = deepspeed(values, micro_batch=4)
        assert recipe.job["micro_batch"] == 4

    def test_without_clipping_and_precision_deepspeeds_defaults_hold(self) -> None:
        _, recipe = deepspeed({"zero_optimization": {"stage": 2}, "train_batch_size": 8}, max_grad_norm=1.0)
        assert recipe.assumed["max_grad_norm"].value == 0.0 and recipe.assumed["autocast"].value is None

    @pytest.mark.parametrize("stage", [1, 2, 3])
    def test_stages(self, stage: int) -> None:
        _, recipe = deepspeed({"zero_optimization": {"stage": str(stage)}})
        assert recipe.job["parallel"]["data"] == f"zero{stage}"

    def test_stage_0_is_data_parallel(self) -> None:
        _, recipe = deepspeed({"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}})
        assert recipe.job["parallel"]["data"] == "ddp" and "zero_optimization.stage" in unread(recipe)

    def test_offload(self) -> None:
        both = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "/x"}}
        _, recipe = deepspeed({"zero_optimization": {"stage": 3, **both}})
        assert recipe.job["parallel"] == {"data": "zero3", "offload": "parameters", "offload_device": "nvme"}
        _, recipe = deepspeed({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})
        assert "zero_optimization.offload_param.device" in unread(recipe)
        _, recipe = deepspeed({"zero_optimization": {"stage": 2, "cpu_offload": True}})
        assert recipe.job["parallel"]["offload"] == "optimizer"

    def test_buckets_are_fields(self) -> None:
        sizes = {"reduce_bucket_size": "2e8", "stage3_prefetch_bucket_size": "auto", "overlap_comm": False}
        _, recipe = deepspeed({"zero_optimization": {"stage": 3, **sizes}}, stack="trl")
        assert not unread(recipe)
        assert recipe.job["parallel"] == {
            "data": "zero3", "reduce_bucket_size": 200_000_000, "prefetch_bucket_size": "auto",
            "overlap_comm": False,
        }  # fmt: skip
        assert recipe.places["parallel.prefetch_bucket_size"].key == "zero_optimization.stage3_prefetch_bucket_size"

    def test_buckets_of_another_stage_move_nothing(self) -> None:
        file = {"stage": 2, "stage3_max_live_parameters": 7, "sub_group_size": 7, "round_robin_gradients": True}
        _, recipe = deepspeed({"zero_optimization": file}, stack="trl")
        assert recipe.job["parallel"] == {"data": "zero2", "round_robin_gradients": True} and not unread(recipe)
        assert "zero_optimization.sub_group_size" in recipe.ignored

    def test_what_a_file_leaves_out_is_deepspeeds_and_not_the_stacks(self) -> None:
        """Axolotl's own file of stage 3 has "auto" and no live parameters, its file of stage 2 overlaps."""
        _, recipe = deepspeed({"zero_optimization": {"stage": 3, "reduce_bucket_size": 1000}}, stack="axolotl")
        found = recipe.job["parallel"]
        assert (found["reduce_bucket_size"], found["prefetch_bucket_size"]) == (1000, 50_000_000)
        assert found["max_live_parameters"] == 1_000_000_000
        _, recipe = deepspeed({"zero_optimization": {"stage": 2}}, stack="axolotl")
        assert recipe.assumed["parallel.overlap_comm"].value is False

    def test_what_no_field_tells(self) -> None:
        more = {"optimizer": {"type": "OneBitAdam"}, "data_efficiency": {"enabled": True}, "elasticity": {"enabled": 0}}
        _, recipe = deepspeed({"zero_optimization": {"stage": 2, "contiguous_gradients": False}, **more})
        assert set(unread(recipe)) == {
            "optimizer.type", "data_efficiency", "zero_optimization.contiguous_gradients",
        }  # fmt: skip

    def test_its_optimizer_takes_the_place_of_the_trainers(self) -> None:
        _, recipe = deepspeed({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, optimizer="adamw_bnb_8bit")
        assert recipe.job["optimizer"] == "adamw_torch_fused"

    def test_splits(self) -> None:
        _, recipe = deepspeed({"sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 4}})
        found = recipe.job["parallel"]
        assert (found["context"], found["context_kind"], found["tensor"]) == (2, "ulysses", 4)

    @pytest.mark.parametrize("junk", [None, [], {}, True, -1, 1e300, "x", [[1]], {"a": {"b": []}}, 10**400])
    def test_any_type_anywhere(self, junk: Any) -> None:
        names = ("zero_optimization", "bf16", "optimizer", "compile", "gradient_clipping", "tensor_parallel")
        inner = {"stage": junk, "offload_param": junk, "reduce_bucket_size": junk, "overlap_comm": junk}
        for name in (*names, "train_micro_batch_size_per_gpu", "sequence_parallel_size", "data_efficiency"):
            deepspeed({"zero_optimization": inner, name: junk})


class TestPointer:
    def test_a_file_a_mapping_and_a_name(self, tmp_path: Path) -> None:
        (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
        for given, expected in (("ds.json", "zero3"), ({"zero_optimization": {"stage": 1}}, "zero1")):
            document = json_document(json.dumps({"deepspeed": given}), "outer.json")
            draft = Draft("outer", "1.0")
            assert take_deepspeed(draft, draft.keys(document), "deepspeed", ReadRequest(document, tmp_path))
            assert draft.fields["parallel.data"] == expected

    def test_a_file_that_is_not_there_is_known_by_its_name(self, tmp_path: Path) -> None:
        for name, data, offload in (
            ("ds_z3_offload_config.json", "zero3", "parameters"),
            ("configs/zero2_offload.json", "zero2", "optimizer"),
            ("my.json", None, None),
        ):
            document = json_document(json.dumps({"deepspeed": name}), "outer.json")
            draft = Draft("outer", "1.0")
            take_deepspeed(draft, draft.keys(document), "deepspeed", ReadRequest(document, tmp_path))
            recipe = draft.finish()
            assert "deepspeed" in unread(recipe)
            assert recipe.job.get("parallel", {}).get("data") == data
            assert recipe.job.get("parallel", {}).get("offload") == offload

    @pytest.mark.parametrize("value", [None, 3, [], "", True])
    def test_nothing_to_point_to(self, value: Any) -> None:
        document = json_document(json.dumps({"deepspeed": value}), "outer.json")
        draft = Draft("outer", "1.0")
        assert not take_deepspeed(draft, draft.keys(document), "deepspeed", ReadRequest(document, Path(".")))


FSDP = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: {reshard}
  fsdp_offload_params: {offload}
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""


class TestAccelerate:
    def test_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "any.yaml"
        file.write_text(FSDP.format(reshard="false", offload="true"))
        recipe = find_recipe(file)
        assert recipe is not None and recipe.framework == "accelerate"
        assert recipe.job["hardware"] == {"gpus": 8, "nodes": 2}
        assert recipe.job["parallel"] == {
            "fsdp_version": 2, "data": "fsdp", "reshard_after_forward": False, "offload": "parameters",
            "cpu_ram_efficient_loading": True, "state_dict_type": "sharded",
        }  # fmt: skip
        assert recipe.job["gradient_checkpointing"] is True and recipe.job["checkpoint_reentrant"] is False
        assert not recipe.not_understood and recipe.places["hardware.gpus"].line == 5

    def test_precision_no_with_and_without_quotes(self) -> None:
        for text in ("'no'", "no", "NO"):
            recipe = accelerate(f"distributed_type: 'NO'\nmixed_precision: {text}")
            assert recipe.job["autocast"] is None and recipe.job["hardware"]["gpus"] == 1
        assert accelerate("distributed_type: MULTI_GPU").assumed["autocast"].value is None

    def test_what_the_training_says_wins(self) -> None:
        text = FSDP.format(reshard="true", offload="false")
        recipe = accelerate(text, autocast="float16", parallel__data="zero2")
        assert (recipe.job["autocast"], recipe.job["parallel"]["data"]) == ("float16", "zero2")
        assert "version" not in str(recipe.job["parallel"])

    def test_the_launchers_own_count_wins(self) -> None:
        draft, document = (
            Draft("outer", "1.0"),
            yaml_document("distributed_type: MULTI_GPU\nnum_processes: 8", "a.yaml"),
        )
        read_accelerate(draft, document, ReadRequest(document, Path("."), Launch(gpus=2)))
        assert "hardware.gpus" not in draft.fields

    def test_its_deepspeed(self) -> None:
        text = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  zero_stage: {}\n{}"
        recipe = accelerate(
            text.format(3, "  offload_param_device: cpu\n  gradient_clipping: 0.5\n  zero3_init_flag: true")
        )
        assert recipe.job["parallel"] == {"data": "zero3", "offload": "parameters"}
        assert recipe.job["max_grad_norm"] == 0.5 and not unread(recipe)
        recipe = accelerate(text.format(2, "  offload_optimizer_device: none\n  gradient_accumulation_steps: 4"))
        assert recipe.job["parallel"] == {"data": "zero2"} and recipe.job["grad_accum"] == 4
        assert accelerate("distributed_type: DEEPSPEED\nnum_machines: 1").job["parallel"] == {"data": "zero2"}

    def test_its_deepspeed_file_takes_the_place_of_its_keys(self, tmp_path: Path) -> None:
        (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
        file = tmp_path / "accelerate.yaml"
        file.write_text(
            "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: ds.json"
        )
        recipe = find_recipe(file)
        assert recipe is not None and recipe.job["parallel"]["data"] == "zero3"
        assert recipe.places["parallel.data"].file.endswith("ds.json")

    def test_mesh(self) -> None:
        mesh = "parallelism_config:\n  parallelism_config_{}_size: {}\n  parallelism_config_{}_size: {}\n"
        start = "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nfsdp_config: {fsdp_version: 2}\n"
        recipe = accelerate(start + mesh.format("tp", 2, "cp", 4))
        assert (recipe.job["parallel"]["tensor"], recipe.job["parallel"]["context"]) == (2, 4)
        recipe = accelerate(start + mesh.format("dp_replicate", 2, "dp_shard", 8))
        assert recipe.job["parallel"]["data"] == "hsdp" and not unread(recipe)
        recipe = accelerate(start + mesh.format("dp_replicate", 4, "dp_shard", 4))
        assert len(unread(recipe)) == 1
        assert accelerate(start + mesh.format("sp", 2, "tp", 1)).job["parallel"]["context_kind"] == "ulysses"

    @pytest.mark.parametrize(
        ("text", "told"), [("distributed_type: XLA", "XLA"), ("distributed_type: 'NO'\nuse_cpu: true", "CPUs")]
    )
    def test_other_cards_are_refused(self, text: str, told: str) -> None:
        assert told in str(accelerate(text).refused)

    @pytest.mark.parametrize(
        "junk", ["[]", "{}", "[[1]]", "-1", "x", "1.5", "{a: [b]}", ".nan", "1e999", "0x" + "f" * 99]
    )
    def test_any_type_anywhere(self, junk: str) -> None:
        names = ("num_processes", "num_machines", "mixed_precision", "fsdp_config", "deepspeed_config", "fp8_config")
        for kind in ("FSDP", "DEEPSPEED", "MULTI_GPU", junk):
            for name in (*names, "parallelism_config", "dynamo_backend", "dynamo_config"):
                accelerate(f"distributed_type: {kind}\n{name}: {junk}")
            accelerate(
                f"distributed_type: {kind}\nfsdp_config: {{fsdp_version: {junk}, reshard_after_forward: {junk}}}"
            )
            accelerate(f"distributed_type: {kind}\nmixed_precision: fp8\nfp8_config: {junk}")


class TestFsdp:
    @pytest.mark.parametrize(
        ("strategy", "data", "reshards"),
        [("FULL_SHARD", "fsdp", True), (2, "fsdp", False), ("NO_SHARD", "ddp", True), ("4", "hsdp", True)],
    )
    def test_strategies_by_name_and_number(self, strategy: object, data: str, reshards: bool) -> None:
        document = json_document(json.dumps({"fsdp_config": {"sharding_strategy": strategy}}), "x.json")
        draft = Draft("outer", "1.0")
        take_fsdp(draft, draft.keys(document))
        assert draft.fields["parallel.data"] == data
        assert draft.fields["parallel.reshard_after_forward"] is reshards

    def test_with_and_without_the_prefix_and_what_is_not_known_of_version_1(self) -> None:
        config = {"fsdp_use_orig_params": False, "forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}
        for version, missing in ((1, {"fsdp_config.forward_prefetch"}), (2, set())):
            document = json_document(json.dumps({"fsdp_config": {**config, "version": version}}), "x.json")
            draft = Draft("outer", "1.0")
            take_fsdp(draft, draft.keys(document))
            assert set(unread(draft.finish())) == missing
