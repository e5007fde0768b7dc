"""The parts of a job that have fields of their own."""

from __future__ import annotations

from dataclasses import dataclass

from tunecast.job.fields import OURS, Section, field, peft, transformers, trl
from tunecast.job.knob import Origin
from tunecast.job.names import DTYPES


@dataclass(frozen=True)
class Lora(Section):
    rank: int = field(
        "int",
        16,
        trl("ModelConfig.lora_r", 16),
        "rank of the adapters",
        low=1,
        high=65536,
        aka=("r", "lora_r", "lora_rank"),
    )
    alpha: float = field(
        "float",
        32.0,
        trl("ModelConfig.lora_alpha", 32),
        "scale of the adapters: alpha / rank",
        low=0,
        high=1e6,
        above_low=True,
        aka=("lora_alpha",),
    )
    dropout: float = field(
        "float",
        0.05,
        trl("ModelConfig.lora_dropout", 0.05),
        "dropout before the adapters",
        low=0,
        high=0.99,
        aka=("lora_dropout",),
    )
    targets: str | tuple[str, ...] | None = field(
        "names",
        None,
        peft("LoraConfig.target_modules", None),
        "modules that get an adapter; null: what PEFT chooses for the architecture (q_proj and v_proj of a Llama)",
        choices=("all-linear", "attention"),
        nullable=True,
        aka=("target_modules", "lora_target", "lora_target_modules"),
    )
    dora: bool = field(
        "bool",
        False,
        trl("ModelConfig.use_dora", False),
        "weight-decomposed adapters",
        aka=("use_dora", "peft_use_dora"),
    )
    rslora: bool = field(
        "bool",
        False,
        trl("ModelConfig.use_rslora", False),
        "scale by alpha / sqrt(rank)",
        aka=("use_rslora", "peft_use_rslora"),
    )
    adapter_dtype: str = field(
        "choice",
        "float32",
        peft("get_peft_model.autocast_adapter_dtype", True),
        "dtype of the adapters; the base weights' when autocast_adapter_dtype=False",
        choices=DTYPES,
    )

    def __post_init__(self) -> None:
        self._read_fields("lora.")


@dataclass(frozen=True)
class Quantization(Section):
    format: str | None = field(
        "choice",
        None,
        trl("ModelConfig.load_in_4bit", False),
        "format of the frozen weights, bitsandbytes' or GPTQ's; null: not quantised; nf4 when the method is qlora",
        choices=("nf4", "fp4", "int8", "gptq"),
        nullable=True,
        flag="quantization",
        aka=("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "quantization_bit", "quant"),
    )
    double_quant: bool = field(
        "bool",
        False,
        trl("ModelConfig.use_bnb_nested_quant", False),
        "quantise the scales too (nf4 and fp4)",
        aka=("bnb_4bit_use_double_quant", "use_bnb_nested_quant"),
    )
    prepare_kbit: bool = field(
        "bool",
        True,
        Origin(
            "tunecast",
            "PEFT's quantization guide calls prepare_model_for_kbit_training, TRL's SFTTrainer does not",
            True,
        ),
        "prepare_model_for_kbit_training was called: what is not quantised becomes float32; with gptq it casts nothing",
    )

    def __post_init__(self) -> None:
        self._read_fields("quantization.")


@dataclass(frozen=True)
class Data(Section):
    tokens: int | None = field("int", None, OURS, "tokens of the data set", low=1, high=10**16, nullable=True)
    samples: int | None = field(
        "int", None, OURS, "samples of the data set, instead of tokens", low=1, high=10**13, nullable=True
    )
    lengths: str | None = field(
        "text", None, OURS, "with samples: a file of their lengths, or a distribution", nullable=True
    )
    epochs: float = field(
        "float",
        3.0,
        transformers("TrainingArguments.num_train_epochs", 3.0),
        "passes over the data set",
        low=0,
        high=1e6,
        above_low=True,
        aka=("num_train_epochs", "num_epochs"),
    )
    packing: bool = field(
        "bool", False, trl("SFTConfig.packing", False), "samples packed into rows of seq_len", aka=("sample_packing",)
    )

    def __post_init__(self) -> None:
        self._read_fields("data.")


@dataclass(frozen=True)
class Hardware(Section):
    gpu: str = field(
        "text",
        "h200-sxm-141gb",
        OURS,
        "card, such as h100-sxm-80gb, rtx-4090 or l40s",
        aka=("device", "accelerator", "gpu_type"),
    )
    gpus: int = field(
        "int", 1, OURS, "cards of one node", low=1, high=1024, aka=("num_gpus", "nproc_per_node", "gpus_per_node")
    )
    nodes: int = field("int", 1, OURS, "machines", low=1, high=100_000, aka=("num_nodes", "nnodes"))
    capacity_bytes: int | None = field(
        "int", None, OURS, "pretend that the card has this much for the allocator", low=1, high=2**50, nullable=True
    )
    reserve_bytes: int = field(
        "bytes",
        0,
        OURS,
        "held on the card by others: a display, another process",
        low=0,
        high=2**50,
        null_is=0,
        flag="reserve",
    )

    def __post_init__(self) -> None:
        self._read_fields("hardware.")


@dataclass(frozen=True)
class Parallel(Section):
    data: str = field(
        "choice",
        "ddp",
        OURS,
        "how data-parallel ranks hold the model",
        choices=("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
    )
    layers: int = field(
        "int", 1, OURS, 'device_map="auto": cards of one machine the layers are spread over', low=1, high=1024
    )
    tensor: int = field(
        "int", 1, OURS, "cards a layer is split over", low=1, high=65536, aka=("tp", "tensor_parallel_size", "tp_size")
    )
    pipeline: int = field(
        "int", 1, OURS, "pipeline stages", low=1, high=65536, aka=("pp", "pipeline_parallel_size", "pp_size")
    )
    context: int = field(
        "int",
        1,
        OURS,
        "cards a sequence is split over",
        low=1,
        high=65536,
        aka=("cp", "context_parallel_size", "cp_size"),
    )
    expert: int = field(
        "int",
        1,
        OURS,
        "cards the experts are split over",
        low=1,
        high=65536,
        aka=("ep", "expert_parallel_size", "ep_size"),
    )
    offload: str = field(
        "choice", "none", OURS, "what waits in host memory", choices=("none", "optimizer", "parameters")
    )

    def __post_init__(self) -> None:
        self._read_fields("parallel.")
