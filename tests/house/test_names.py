"""What others may rely on: public names, commands, flags, schema. A change here is a change of the contract."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import tunecast
from tunecast.cli import (
    compare,
    data,
    diff,
    explain_oom,
    fit,
    fit_script,
    gpus,
    largest,
    launch,
    main,
    offers,
    plan,
    plan_script,
    predict,
    runs,
    trace,
    watch,
)
from tunecast.cli.filters import FILTERS as FILTER_FLAGS
from tunecast.job.foreign import MEANINGS, called

PUBLIC = {
    "Choice", "Comparison", "DoesNotFit", "Fit", "Job", "Largest", "Memory", "NotResolved", "Offers",
    "OomExplanation", "OverBudget", "Plan", "Prediction", "ScriptTrace", "TrainingData", "TunecastError",
    "Unsupported", "UsageError", "__version__", "cancel", "compare", "data", "jobs", "launch", "logs", "Launched",
    "LaunchedJobs", "LaunchedTogether", "RenderedTogether", "Rendering", "FileChanges", "diff",
    "explain_oom", "fit", "gpus", "largest", "models", "nodes", "offers", "plan", "predict",
    "read", "read_jobs", "recipe", "trace", "MeasuredRun", "StoredRuns", "runs", "calibration", "Callback", "watching",
}  # fmt: skip
SCHEMAS = {
    tunecast.Prediction: "tunecast.prediction/1", tunecast.Plan: "tunecast.plan/1", tunecast.Fit: "tunecast.fit/1",
    tunecast.Comparison: "tunecast.compare/1", tunecast.Largest: "tunecast.largest/1",
    tunecast.OomExplanation: "tunecast.oom/1", tunecast.Offers: "tunecast.offers/1",
    tunecast.TrainingData: "tunecast.data/1", tunecast.Rendering: "tunecast.launch/1",
    tunecast.MeasuredRun: "tunecast.run/1",
    tunecast.Launched: "tunecast.launched/1", tunecast.LaunchedJobs: "tunecast.jobs/1",
    tunecast.FileChanges: "tunecast.diff/1",
    tunecast.RenderedTogether: "tunecast.launch-many/1", tunecast.LaunchedTogether: "tunecast.launched-many/1",
}  # fmt: skip

OUTPUT_AND_TRACING = {
    "-h", "--help", "--json", "--html", "--snapshot", "--python", "--time-limit", "--memory-limit", "--short",
    "--details",
}  # fmt: skip
HELP_ALL = {"--help-all"}
"""Of commands with more flags than a screen has lines."""
TRACE = {
    "--gpu", "--steps", "--nproc-per-node", "--nnodes", "--accelerate-config", "--allocator", "--capacity", "--model",
    "--reserve", "--gpus", "--total-steps",
}  # fmt: skip
JOB = {
    "--model", "--id", "--task", "--method", "--trained", "--stack", "--rank", "--alpha", "--dropout", "--targets",
    "--dora", "--no-dora", "--rslora", "--no-rslora", "--adapter-dtype", "--quantization", "--double-quant",
    "--no-double-quant", "--quantize-experts", "--no-quantize-experts", "--prepare-kbit", "--no-prepare-kbit",
    "--use-orig-params", "--no-use-orig-params", "--weights-dtype", "--autocast", "--matmul-dtype",
    "--optimizer", "--max-grad-norm", "--seq-len", "--micro-batch", "--grad-accum", "--gradient-checkpointing",
    "--no-gradient-checkpointing", "--attention", "--kernels", "--compile", "--no-compile", "--allocator",
    "--lengths", "--tokens", "--samples", "--data-lengths", "--data-path", "--tokenizer",
    "--epochs", "--packing", "--no-packing", "--gpu",
    "--gpus", "--nodes", "--capacity-bytes", "--reserve", "--parallel-data", "--layers", "--tensor", "--pipeline",
    "--context", "--expert", "--offload", "--set", "--transformers-version", "--stack-version", "--torch-version",
    "--peft-version", "--trl-version", "--bitsandbytes-version", "--liger-version", "--unsloth-version",
    "--loss", "--optimizer-in-backward", "--no-optimizer-in-backward", "--offload-activations",
    "--no-offload-activations",
    "--checkpoint-reentrant", "--no-checkpoint-reentrant", "--interconnect", "--inter-node-gbps", "--launch-us",
    "--packing-strategy", "--group-by-length", "--no-group-by-length", "--pad-to-multiple-of",
    "--max-tokens-per-batch", "--drop-last", "--seed", "--no-drop-last", "--workers", "--eval-samples", "--held-back",
    "--append-eos", "--no-append-eos", "--completion-only", "--no-completion-only", "--max-steps",
    "--eval-strategy", "--eval-steps", "--eval-batch", "--save-strategy", "--save-steps", "--save-total-limit",
    "--provisioning-s", "--image", "--download-rate", "--disk-rate", "--host-w", "--pue", "--country",
    "--fsdp-version", "--recompute", "--virtual-stages", "--reduce-dtype", "--reshard-after-forward", "--shard-ends",
    "--sequence-parallel", "--no-sequence-parallel", "--expert-tensor",
    "--no-shard-ends",
    "--no-reshard-after-forward", "--context-kind", "--offload-device", "--nvme-rate", "--prepared", "--no-prepared",
    "--num-proc", "--sync-each-batch", "--no-sync-each-batch", "--cpu-ram-efficient-loading",
    "--no-cpu-ram-efficient-loading", "--load-on-rank-0", "--no-load-on-rank-0", "--state-dict-type",
    "--replicate", "--optimizer-state-dtype", "--master-weights",
    "--evals-per-epoch", "--eval-max-batches", "--saves-per-epoch", "--save-only-model", "--no-save-only-model",
    "--reduce-bucket-size", "--prefetch-bucket-size", "--param-persistence-threshold", "--max-live-parameters",
    "--max-reuse-distance", "--sub-group-size", "--overlap-comm", "--no-overlap-comm", "--round-robin-gradients",
    "--no-round-robin-gradients",
    "--reference", "--sft-weight", "--beta", "--preference-prompt-length", "--generations", "--prompt-length",
    "--completion-length",
    "--steps-per-generation", "--iterations", "--rl-beta", "--reward-model", "--rl-engine", "--vllm-place",
    "--vllm-memory-fraction", "--vllm-tensor", "--vllm-sleep", "--no-vllm-sleep", "--vllm-cards", "--labels",
    "--negatives", "--teacher", "--teacher-place", "--on-policy", "--teacher-top-k", "--images", "--pixels", "--frames",
    "--tiles", "--vision-trained",
}  # fmt: skip


def test_public_names() -> None:
    assert set(tunecast.__all__) == PUBLIC and len(tunecast.__all__) == len(PUBLIC)
    for name in PUBLIC:
        assert getattr(tunecast, name) is not None
        assert name in dir(tunecast)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tunecast.nothing


def test_public_names_survive_the_import_of_their_rooms() -> None:
    """A function called as its own package would be hidden by it."""
    rooms = ("errors", "job", "tape", "hardware", "prediction", "market", "planning", "launching", "report", "door")
    for room in (*rooms, "cli"):
        importlib.import_module(f"tunecast.{room}")
        assert room not in PUBLIC


def test_commands() -> None:
    named = {
        *("plan", "predict", "fit", "trace", "largest", "compare", "explain-oom", "data", "gpus", "offers"),
        *("launch", "jobs", "logs", "cancel", "runs", "completion", "watch"),
    }
    assert named <= set(main.COMMANDS)


def test_flags_of_predict() -> None:
    own = {"--engine", "--exact", "--no-advice", "--no-calibration", "--cost"}
    assert set(predict.parser()._option_string_actions) == OUTPUT_AND_TRACING | HELP_ALL | JOB | own


ASKING = {"-h", "--help", "--help-all", "--engine", "--python", "--json"}


def test_flags_of_the_commands_that_ask_many_times() -> None:
    assert set(largest.parser()._option_string_actions) == ASKING | JOB | {"--short"}
    assert set(compare.parser()._option_string_actions) == ASKING | JOB | {
        "--to", "--short", "--no-calibration",
    }  # fmt: skip
    assert set(diff.parser()._option_string_actions) == HELP_ALL | {
        "-h", "--help", "--base", "--staged", "--gpu", "--gpus", "--plan", "--within", "--eu", "--quick", "--fail-on",
        "--short", "--json", "--md",
    }  # fmt: skip
    assert set(explain_oom.parser()._option_string_actions) == ASKING | JOB


def test_names_of_other_trainers() -> None:
    """Accepted in flags, --set and --to: a name that is taken back breaks somebody's script."""
    for name in (
        "batch_size", "per_device_train_batch_size", "gradient_accumulation_steps", "max_seq_length", "max_length",
        "num_train_epochs", "lora_r", "lora_alpha", "lora_dropout", "target_modules", "optim", "torch_dtype", "dtype",
        "attn_implementation", "use_dora", "use_rslora", "torch_compile", "num_gpus", "nnodes", "sample_packing",
    ):  # fmt: skip
        assert name in called()
    for name in (
        "load_in_4bit", "load_in_8bit", "use_peft", "bf16", "fp16", "mixed_precision", "flash_attn",
        "flash_attention", "use_liger_kernel", "quantization_bit", "train_sampling_strategy",
    ):  # fmt: skip
        assert name in MEANINGS


def test_flags_of_gpus() -> None:
    assert set(gpus.parser()._option_string_actions) == {"-h", "--help", "--vendor", "--min-memory", "--json"}


def test_flags_of_data() -> None:
    own = {"-h", "--help", "--json"}
    assert set(data.parser()._option_string_actions) == (JOB | HELP_ALL | own) - {"--data-path"}


def test_flags_of_offers() -> None:
    assert set(offers.parser()._option_string_actions) == HELP_ALL | {
        "-h", "--help", "--json", "--all", "--gpu", "--gpus", "--provider", "--kind", "--spot", "--no-spot",
        "--country", "--eu", "--no-cloud-act", "--certified", "--interconnect", "--vendor", "--max-usd", "--max-age",
        "--eur", "--usd-per-eur", "--vat", "--exclude-provider", "--md", "--available",
    }  # fmt: skip


def test_flags_of_plan() -> None:
    assert set(plan.parser()._option_string_actions) == JOB | HELP_ALL | {
        "-h", "--help", "--json", "--html", "--md", "--quiet", "--within", "--max-usd", "--nodes-up-to", "--keep",
        "--allow", "--provider", "--kind", "--spot", "--no-spot", "--eu", "--no-cloud-act", "--certified", "--vendor",
        "--eur", "--usd-per-eur", "--vat", "--storage", "--egress", "--interruptions", "--marketplace", "--reserved",
        "--max-age", "--as-of", "--exclude-provider", "--available", "--validated", "--runs", "--weekly", "--details",
        "--short", "--no-calibration",
    }  # fmt: skip


def test_flags_of_a_script() -> None:
    """What `plan` and `fit` take before `--`: a job's flags are not among them."""
    tracing = {"-h", "--help", "--json", "--short", "--python", "--time-limit", "--memory-limit", "--traces"}
    script = TRACE - {"--gpus"}  # cards of one process are traced alone
    assert set(fit_script.parser()._option_string_actions) == tracing | script | {"--allow"}
    of_plan = set(plan.parser()._option_string_actions) - (JOB - set(FILTER_FLAGS)) - HELP_ALL - {"--keep", "--allow"}
    assert set(plan_script.parser()._option_string_actions) == tracing | script | (
        of_plan - {"--nodes-up-to", "--no-calibration"}
    )


def test_flags_of_fit() -> None:
    own = {"-h", "--help", "--json", "--allow", "--patch", "--write", "--no-calibration", "--short", "--details"}
    assert set(fit.parser()._option_string_actions) == JOB | HELP_ALL | own


def test_flags_of_launch() -> None:
    own = {"-h", "--help", "--json", "--on", "--dry-run", "--out", "--option", "--with", "--cpu", "--again"}
    own |= {"--no-preflight", "--no-record"}
    own |= {"--at-once", "--share", "--within", "--max-usd", "--eu", "--no-cloud-act", "--spot", "--marketplace"}
    own |= {"--reserved", "--provider", "--exclude-provider", "--nodes-up-to", "--as-of"}
    assert set(launch.parser()._option_string_actions) == JOB | HELP_ALL | own


def test_flags_of_runs() -> None:
    assert set(runs.parser()._option_string_actions) == {
        "-h", "--help", "--json", "--gpu", "--model", "--method", "--state", "--since", "--limit", "--plot", "--html",
        "--out", "--shipped", "--keep", "--dry-run",
    }  # fmt: skip


def test_flags_of_watch() -> None:
    own = {"-h", "--help", "--within", "--budget", "--usd-per-hour"}
    assert set(watch.parser()._option_string_actions) == JOB | HELP_ALL | own


def test_flags_of_trace() -> None:
    assert set(trace.parser()._option_string_actions) == OUTPUT_AND_TRACING | TRACE


def test_schemas() -> None:
    assert {kind: kind.schema for kind in SCHEMAS} == SCHEMAS
    for kind in SCHEMAS:
        assert kind.KEYS[0] == "schema"


SOURCE = Path(tunecast.__file__).parent
BUILD = SOURCE / "tape" / "build"
UPSTREAM = (BUILD / "families", BUILD / "stacks", BUILD / "vision", SOURCE / "tape" / "trace")
"""Where modules of a model have the names of the package that is followed: each file is a model of its own."""


def class_definitions(folder: Path) -> Iterator[tuple[str, Path, set[str]]]:
    """Each class at the top of a file: its name, the file, and the names of its bases."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
                yield node.name, path, bases


def names_twice(folder: Path, upstream: Sequence[Path]) -> dict[str, list[str]]:
    """Class names that are defined in two files, but for modules of a model in the files of `upstream`."""
    classes = list(class_definitions(folder))
    modules, size = {"Module"}, 0
    while size != len(modules):
        size = len(modules)
        modules |= {name for name, _, bases in classes if bases & modules}
    places: dict[str, list[str]] = {}
    for name, path, bases in classes:
        is_model = bases & modules and any(place in path.parents for place in upstream)
        if not is_model:
            places.setdefault(name, []).append(str(path.relative_to(folder)))
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_class_name_twice() -> None:
    """One noun for one concept: who looks for a class finds one."""
    assert names_twice(SOURCE, UPSTREAM) == {}


def test_a_class_name_that_comes_twice_is_found(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "a.py").write_text("class Plan: ...\nclass Module: ...\nclass _Own: ...\n")
    (tmp_path / "b.py").write_text("class Plan: ...\nclass Only: ...\nclass _Own: ...\n")
    for name in ("one.py", "two.py"):
        (models / name).write_text("class Layer(a.Module): ...\nclass Deep(Layer): ...\nclass Release: ...\n")
    both = ["models/one.py", "models/two.py"]
    assert names_twice(tmp_path, [models]) == {
        "Plan": ["a.py", "b.py"], "_Own": ["a.py", "b.py"], "Release": both,
    }  # fmt: skip
    assert names_twice(tmp_path, []).keys() == {"Plan", "_Own", "Release", "Layer", "Deep"}
