"""What loading, saving, evaluating and resuming take: predicted by `prediction/outside`, then measured on a card.

    python benchmarks/outside_measure.py --predict                writes data/outside_predictions.jsonl; needs no card
    python benchmarks/outside_measure.py OUT.jsonl                measures every case on the card, a line each
    python benchmarks/outside_measure.py OUT.jsonl --tiny --cpu   tries the program out where there is no card

Models have random weights and are written to a temporary folder (--folder), which is deleted at the end: 12 GB for the
two of 1B and 3B, and 14 GB of checkpoints. Every case is a process of its own, watched from outside: the highest
RssAnon and RssFile of each phase are sampled every 2 ms, VmHWM is the kernel's. bitsandbytes may lie on PYTHONPATH;
cases that need it then put it there themselves, for importing it makes a CUDA context. Bytes and seconds throughout.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from machine import MEASURED_WITH

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else asking for a card spoils the fork
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))

BNB_PATHS = [p for p in sys.path if p and "site-packages" not in p and (Path(p) / "bitsandbytes").is_dir()]
SEQ_LEN, TRAIN_BATCH, EVAL_BATCH, EVAL_ROWS = 1024, 1, 8, 16
PHASES = ("rest", "write", "load", "move", "train", "save", "evaluate", "read_weights", "read_state")

ONE, THREE = "llama-3.2-1b", "llama-3.2-3b"
LORA = {"rank": 16, "targets": "all-linear", "dropout": 0.0}
FULL = {"model": ONE, "method": "full", "weights_dtype": "bfloat16", **MEASURED_WITH}
ADAPTERS = {"model": THREE, "method": "lora", "weights_dtype": "bfloat16", "lora": LORA, **MEASURED_WITH}
NF4 = {"format": "nf4", "double_quant": True, "prepare_kbit": False}
QUANTIZED = ADAPTERS | {"method": "qlora", "quantization": NF4}

CASES: list[dict[str, Any]] = [
    {"case": "context", "kind": "context", "job": FULL},
    {"case": "write-1b", "kind": "write", "job": FULL},
    {"case": "write-3b", "kind": "write", "job": FULL | {"model": THREE}},
    {"case": "load-1b", "kind": "load", "job": FULL},
    {"case": "load-3b", "kind": "load", "job": FULL | {"model": THREE}},
    {"case": "load-3b-over-host", "kind": "load", "job": FULL | {"model": THREE}, "device_map": False},
    {"case": "load-3b-float32", "kind": "load", "job": FULL | {"model": THREE, "weights_dtype": "float32"}},
    {"case": "full-1b", "kind": "train", "job": FULL, "steps": 2},
    {"case": "full-1b-resumed", "kind": "resume", "job": FULL, "of": "full-1b", "steps": 3},
    {"case": "lora-3b", "kind": "train", "job": ADAPTERS, "steps": 3, "save_steps": 1, "limit": 1},
    {"case": "lora-3b-resumed", "kind": "resume", "job": ADAPTERS, "of": "lora-3b", "steps": 4},
    {"case": "load-3b-nf4", "kind": "load", "job": QUANTIZED, "bnb": True},
    {
        "case": "qlora-3b-paged",
        "kind": "train",
        "job": QUANTIZED | {"optimizer": "paged_adamw_8bit"},
        "steps": 2,
        "bnb": True,
    },
    {
        "case": "qlora-3b-paged-resumed",
        "kind": "resume",
        "job": QUANTIZED | {"optimizer": "paged_adamw_8bit"},
        "of": "qlora-3b-paged",
        "steps": 3,
        "bnb": True,
    },
    {"case": "full-1b-8bit", "kind": "train", "job": FULL | {"optimizer": "adamw_8bit"}, "steps": 2, "bnb": True},
    {
        "case": "full-1b-float32",
        "kind": "train",
        "job": FULL | {"weights_dtype": "float32", "optimizer": "adafactor"},
        "steps": 2,
    },
    {
        "case": "load-3b-nf4-plain",
        "kind": "load",
        "job": QUANTIZED | {"quantization": {"format": "nf4", "double_quant": False}},
        "bnb": True,
    },
    {
        "case": "load-3b-int8",
        "kind": "load",
        "job": QUANTIZED | {"quantization": {"format": "int8"}},
        "bnb": True,
    },
]
"""The most telling first: a run out of time loses the last."""


# ------------------------------------------------------------------------------------------------ the models


def config_of(name: str, tiny: bool) -> Any:
    from transformers import AutoConfig

    raw = json.loads((ROOT / "src" / "tunecast" / "job" / "models" / f"{name}.json").read_text())
    if tiny:
        raw |= {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}
        raw |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return AutoConfig.for_model(raw.pop("model_type"), **{k: v for k, v in raw.items() if k != "torch_dtype"})


def job_of(case: dict[str, Any], optimizer: str | None = None) -> Any:
    from tunecast.job import job_from_dict

    values = {"seq_len": SEQ_LEN, "micro_batch": TRAIN_BATCH, "gradient_checkpointing": False} | case["job"]
    return job_from_dict(values | ({"optimizer": optimizer} if optimizer else {}))


def with_adapters(job: Any, model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=job.lora.rank,
        lora_alpha=job.lora.alpha,
        lora_dropout=job.lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


# ---------------------------------------------------------------------------------------------- the predictions


SHOWN = {
    "write": ("saving", "disk"),
    "load": ("loading",),
    "train": ("loading", "saving", "disk", "evaluation"),
    "resume": ("loading", "resuming"),
}


def predict(path: Path) -> None:
    from outside import said_now

    with path.open("x") as out:  # what was predicted before a measurement is never written again
        for case in CASES:
            row: dict[str, Any] = {"case": case["case"], "kind": case["kind"], "job": case["job"]}
            said = said_now(case)
            names = SHOWN.get(case["kind"], tuple(said))
            row["predicted"] = {
                name: said[name] for name in (*names, "model_bytes", "state_card_bytes") if name in said
            }
            out.write(json.dumps(row) + "\n")


# ---------------------------------------------------------------------------------------------- the measurement


def status_of(pid: int | str = "self") -> dict[str, int]:
    """RssAnon, RssFile, VmRSS and VmHWM in bytes; without the first two, from statm."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/status") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key in ("RssAnon", "RssFile", "RssShmem", "VmRSS", "VmHWM"):
                    found[key] = int(value.split()[0]) * 1024
        if "RssAnon" not in found:
            with open(f"/proc/{pid}/statm") as line:
                pages = [int(word) * os.sysconf("SC_PAGE_SIZE") for word in line.read().split()]
            found |= {"RssAnon": pages[1] - pages[2], "RssFile": pages[2]}
    except (OSError, ValueError, IndexError):
        pass
    return found


class Watch:
    """Phases of one case. `board` tells the parent, which samples from outside, what phase it is."""

    def __init__(self, board: Any, on_card: bool) -> None:
        self.board, self.on_card = board, on_card
        self.phases: dict[str, dict[str, Any]] = {}
        self.stack: list[str] = []

    def peaks(self) -> tuple[int, int]:
        if not self.on_card:
            return 0, 0
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def reset(self) -> None:
        if self.on_card:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def merge(self, name: str) -> None:
        """Peaks so far belong to `name`; a phase within a phase begins with a clean slate."""
        allocated, reserved = self.peaks()
        seen = self.phases[name]
        seen["peak_alloc"] = max(seen.get("peak_alloc", 0), allocated)
        seen["peak_reserved"] = max(seen.get("peak_reserved", 0), reserved)
        seen["host_peak"] = max(seen.get("host_peak", 0), status_of().get("VmHWM", 0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        gc.collect()
        if self.stack:
            self.merge(self.stack[-1])
        self.reset()
        host = status_of()
        seen = self.phases.setdefault(name, {"times": 0, "s": 0.0})
        before = {"before_anon": host.get("RssAnon"), "before_file": host.get("RssFile"), "before_alloc": self.now()}
        seen |= {key: value for key, value in before.items() if key not in seen}  # of several, before the first
        seen["times"] += 1
        self.stack.append(name)
        self.board.value = PHASES.index(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.merge(name)
            seen["s"] = round(seen["s"] + time.perf_counter() - began, 3)
            self.stack.pop()
            self.board.value = PHASES.index(self.stack[-1]) if self.stack else 0
            host = status_of()
            seen |= {"after_anon": host.get("RssAnon"), "after_file": host.get("RssFile"), "after_alloc": self.now()}
            if self.stack:
                outer = self.phases[self.stack[-1]]
                for key in ("peak_alloc", "peak_reserved", "host_peak"):
                    outer[key] = max(outer.get(key, 0), seen[key])
            self.reset()

    def now(self) -> int:
        if not self.on_card:
            return 0
        import torch

        return torch.cuda.memory_allocated()

    def wrapped(self, name: str, function: Any) -> Any:
        def within(*given: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*given, **named)

        return within


class Rows:
    """A data set of random tokens."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        import torch

        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.ids[at], "labels": self.ids[at]}


def device_bytes(on_card: bool) -> int:
    if not on_card:
        return 0
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def write(case: dict[str, Any], where: Path, watch: Watch, tiny: bool) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if watch.on_card else "cpu"):
        model = AutoModelForCausalLM.from_config(config_of(case["job"]["model"], tiny))
    torch.set_default_dtype(before)
    folder = where / case["job"]["model"]
    with watch.phase("write"):
        model.save_pretrained(folder)
    return {"parameters": sum(p.numel() for p in model.parameters()), "files": files_of(folder)}


def loaded(case: dict[str, Any], where: Path, watch: Watch) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    job = case["job"]
    how: dict[str, Any] = {"dtype": getattr(torch, job["weights_dtype"])}
    place = 0 if watch.on_card else "cpu"
    if case.get("device_map", True):
        how["device_map"] = {"": place}
    if quantization := job.get("quantization"):
        from transformers import BitsAndBytesConfig

        four = quantization["format"] != "int8"
        how["quantization_config"] = (
            BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type=quantization["format"],
                bnb_4bit_use_double_quant=quantization.get("double_quant", False),
                bnb_4bit_compute_dtype=torch.bfloat16,
            )
            if four
            else BitsAndBytesConfig(load_in_8bit=True)
        )
    with watch.phase("load"):
        model = AutoModelForCausalLM.from_pretrained(where / job["model"], **how)
    if not case.get("device_map", True):
        with watch.phase("move"):
            model.to(place)
    return model


def trainer_of(case: dict[str, Any], model: Any, where: Path, folder: Path, watch: Watch, tiny: bool) -> Any:
    import transformers
    from transformers import Trainer, TrainingArguments

    if case["job"]["method"] != "full":
        model = with_adapters(job_of(case), model)
    length, vocabulary = 32 if tiny else SEQ_LEN, model.config.vocab_size
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=case["steps"],
        per_device_train_batch_size=TRAIN_BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        optim=case["job"].get("optimizer", "adamw_torch_fused"),
        bf16=True,
        save_steps=case.get("save_steps", 500),
        save_total_limit=case.get("limit"),
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=not watch.on_card,
        dataloader_pin_memory=False,
    )
    data = Rows(8, length, vocabulary), Rows(EVAL_ROWS, length, vocabulary)
    trainer = Trainer(model=model, args=arguments, train_dataset=data[0], eval_dataset=data[1])
    trainer._save_checkpoint = watch.wrapped("save", trainer._save_checkpoint)
    trainer._load_from_checkpoint = watch.wrapped("read_weights", trainer._load_from_checkpoint)
    trainer._load_optimizer_and_scheduler = watch.wrapped("read_state", trainer._load_optimizer_and_scheduler)
    counts: list[int] = []
    rotate = transformers.trainer.rotate_checkpoints

    def counted(*given: Any, **named: Any) -> None:
        counts.append(len(list(folder.glob("checkpoint-*"))))
        rotate(*given, **named)

    transformers.trainer.rotate_checkpoints = counted
    trainer.checkpoint_counts = counts
    return trainer


def files_of(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def state_of(optimizer: Any) -> dict[str, int]:
    """Bytes of the optimizer's tensors by where torch says they are."""
    import torch

    seen: dict[str, int] = {}
    for held in optimizer.state.values():
        for value in held.values():
            if isinstance(value, torch.Tensor):
                place = "paged" if getattr(value, "is_paged", False) else value.device.type
                seen[place] = seen.get(place, 0) + value.numel() * value.element_size()
    return seen


def trained(case: dict[str, Any], where: Path, watch: Watch, tiny: bool) -> dict[str, Any]:
    model = loaded(case, where, watch)
    folder = where / case["case"]
    trainer = trainer_of(case, model, where, folder, watch, tiny)
    measured: dict[str, Any] = {"model_alloc": watch.now()}
    before = None
    if case["kind"] == "resume":
        source = where / case["of"]
        before = str(max(source.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])))
        trainer.args.save_strategy = "no"
        trainer.args.save_steps = 10**6
    with watch.phase("train"):
        trainer.train(resume_from_checkpoint=before)
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    measured["state"] = state_of(optimizer)
    if case["kind"] == "train":
        left = sorted(folder.glob("checkpoint-*"))
        measured |= {"files": files_of(left[-1]), "checkpoints_left": len(left)}
        measured["checkpoints_most"] = max(trainer.checkpoint_counts)
        with watch.phase("evaluate"):
            trainer.evaluate()
    return measured


def run(case: dict[str, Any], where: Path, board: Any, go: Any, answers: Any, tiny: bool, on_card: bool) -> None:
    """One case, in a process of its own. Imports come before `go`, so that they run beside the case before."""
    measured: dict[str, Any] = {}
    watch = Watch(board, on_card)
    try:
        if not case.get("bnb"):
            prepare(case)
        go.wait()
        if case.get("bnb"):
            sys.path[:0] = [bitsandbytes_alone(where)] if BNB_PATHS else []
            prepare(case)
        import torch

        torch.manual_seed(0)
        measured["imported"] = status_of()
        if on_card:
            torch.cuda.init()  # no tensor yet: a cached segment would change what the loader asks for
            torch.cuda.synchronize()
        measured |= {"started": status_of(), "context_bytes": device_bytes(on_card)}
        if case["kind"] == "write":
            measured |= write(case, where, watch, tiny)
        elif case["kind"] == "load":
            model = loaded(case, where, watch)
            measured |= {"model_alloc": watch.now(), "parameters": sum(p.numel() for p in model.parameters())}
        elif case["kind"] in ("train", "resume"):
            measured |= trained(case, where, watch, tiny)
        measured |= {"completed": True, "device_used": device_bytes(on_card), "torch": torch.__version__}
    except BaseException:
        measured |= {"completed": False, "error": traceback.format_exc()[-1500:]}
    measured["phases"] = watch.phases
    answers.put(json.dumps(measured, default=str))


def bitsandbytes_alone(where: Path) -> str:
    """A folder with bitsandbytes and none of what lies beside it on PYTHONPATH."""
    folder = where / "packages"
    folder.mkdir(exist_ok=True)
    for path in Path(BNB_PATHS[0]).resolve().glob("bitsandbytes*"):
        with suppress(FileExistsError):
            (folder / path.name).symlink_to(path)
    return str(folder)


def prepare(case: dict[str, Any]) -> None:
    if case["kind"] in ("train", "resume"):
        import peft  # noqa: F401
        from transformers import Trainer  # noqa: F401
    else:
        from transformers import LlamaForCausalLM  # noqa: F401


def measure(options: argparse.Namespace) -> None:
    sys.path[:] = [entry for entry in sys.path if entry not in BNB_PATHS]
    import torch  # noqa: F401  imported before the fork, so that each case starts in a moment
    import transformers  # noqa: F401

    cases = [case for case in CASES if not options.only or case["case"] in options.only]
    where = Path(tempfile.mkdtemp(prefix="outside-", dir=options.folder))
    fork = multiprocessing.get_context("fork")
    start = time.monotonic()
    waiting: list[tuple[Any, ...]] = []
    rest = iter(cases)

    def enlist() -> None:
        case = next(rest, None)
        if case is not None:
            board, go, answers = fork.Value("i", 0, lock=False), fork.Event(), fork.Queue()
            process = fork.Process(
                target=run, args=(case, where, board, go, answers, options.tiny, not options.cpu), daemon=True
            )
            process.start()
            waiting.append((case, process, board, go, answers))

    try:
        with options.out.open("w") as out:
            for _ in range(options.ahead):
                enlist()
            while waiting:
                case, process, board, go, answers = waiting.pop(0)
                enlist()
                began = time.monotonic()
                if began - start > options.limit_s:
                    measured: dict[str, Any] = {"completed": False, "error": "out of time before it began"}
                else:
                    go.set()
                    deadline = min(began + options.case_s, start + options.limit_s + 20)
                    measured = watched(process, board, answers, deadline)
                process.join(0.5)
                if process.is_alive():
                    process.kill()
                    process.join()
                measured["wall_s"] = round(time.monotonic() - began, 2)
                row = {"case": case["case"], "kind": case["kind"], "job": case["job"], "measured": measured}
                out.write(json.dumps(row) + "\n")
                out.flush()
                said = "done" if measured.get("completed") else "FAILED " + str(measured.get("error"))[-300:]
                so_far = round(time.monotonic() - start, 1)
                print(case["case"], said, measured["wall_s"], "s; so far", so_far, flush=True)
    finally:
        for _, process, *_ in waiting:
            process.kill()
        shutil.rmtree(where, ignore_errors=True)


def watched(process: Any, board: Any, answers: Any, deadline: float) -> dict[str, Any]:
    """Sample the case's resident memory until it answers; the peaks of each phase."""
    sampled: dict[str, dict[str, int]] = {}
    samples = 0
    while True:
        phase = PHASES[board.value]
        now = status_of(process.pid)
        peaks = sampled.setdefault(phase, {})
        for key in ("RssAnon", "RssFile", "VmRSS"):
            peaks[key] = max(peaks.get(key, 0), now.get(key, 0))
        samples += 1
        if not answers.empty():
            try:
                measured: dict[str, Any] = json.loads(answers.get(timeout=10))
            except Exception as error:
                measured = {"completed": False, "error": f"its answer could not be read: {error}"}
            break
        if not process.is_alive():
            measured = {"completed": False, "error": f"the process ended with {process.exitcode}"}
            break
        if time.monotonic() > deadline:
            measured = {"completed": False, "error": "no answer in time"}
            break
        time.sleep(0.002)
    return measured | {"sampled": sampled, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--predict", action="store_true", help="write the predictions instead of measuring")
    parser.add_argument("--tiny", action="store_true", help="models of a few hundred kB")
    parser.add_argument("--cpu", action="store_true", help="without a card")
    parser.add_argument("--only", nargs="*", help="cases by name; those they need must be among them")
    parser.add_argument("--folder", type=Path, help="where models and checkpoints go for the while")
    parser.add_argument("--ahead", type=int, default=3, help="cases that import while another runs")
    parser.add_argument("--limit-s", type=float, default=130)
    parser.add_argument("--case-s", type=float, default=60)
    options = parser.parse_args()
    if options.predict:
        predict(options.out or HERE / "data" / "outside_predictions.jsonl")
    elif options.out is None:
        parser.error("OUT.jsonl is missing")
    else:
        measure(options)


if __name__ == "__main__":
    main()
