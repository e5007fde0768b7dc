"""The parts of a job that have fields of their own."""

from __future__ import annotations

from tunecast.job.knob import OURS, Origin, Section, field, peft, transformers, trl
from tunecast.job.names import DTYPES
from tunecast.records import dataclass

DOWNLOAD_BYTES_PER_S = 300_000_000
"""Where nobody says it (prediction/time/whole.py, `DOWNLOAD_SPREAD`, has what was seen)."""


@dataclass(frozen=True)
class Lora(Section):
    rank: int = field(
        16, trl("ModelConfig.lora_r"), "rank of the adapters", within=(1, 65536), aka="r lora_r lora_rank"
    )
    alpha: float = field(
        32.0,
        trl("ModelConfig.lora_alpha", 32),
        "adapters are scaled by alpha / rank",
        within=(0, 1e6),
        above_low=True,
        aka="lora_alpha",
    )
    dropout: float | None = field(
        None,
        trl("ModelConfig.lora_dropout", 0.05),
        "dropout before the adapters; null: 0.05, or 0 if experts get adapters, for which PEFT refuses dropout",
        within=(0, 0.99),
        aka="lora_dropout",
    )
    targets: str | tuple[str, ...] | None = field(
        None,
        peft("LoraConfig.target_modules"),
        "modules that get an adapter; null: PEFT's choice for the architecture (q_proj and v_proj for Llama), or "
        "all-linear if it has none. experts.down_proj means the experts' stacked weights themselves "
        "(target_parameters). NeMo Automodel also takes patterns of full names (*_proj), with ! before what to "
        "leave out",
        choices=("all-linear", "attention"),
        aka="target_modules lora_target lora_target_modules lora_modules",
    )
    dora: bool = field(False, trl("ModelConfig.use_dora"), "weight-decomposed adapters", aka="use_dora peft_use_dora")
    rslora: bool = field(
        False, trl("ModelConfig.use_rslora"), "scale by alpha / sqrt(rank) instead", aka="use_rslora peft_use_rslora"
    )
    adapter_dtype: str = field(
        "float32",
        peft("get_peft_model.autocast_adapter_dtype", True),
        "dtype of the adapters; with autocast_adapter_dtype=False that of the base weights",
        choices=DTYPES,
    )

    @property
    def dropout_fraction(self) -> float:
        """Where `fill_in` has settled it (tape/build/fill_in.py)."""
        assert self.dropout is not None, "dropout follows from the model: fill_in comes first"
        return self.dropout


@dataclass(frozen=True)
class Quantization(Section):
    format: str | None = field(
        None,
        trl("ModelConfig.load_in_4bit", False),
        "format of the frozen weights: bitsandbytes' nf4, fp4 and int8; gptq, awq and transformers' "
        "finegrained_fp8 as stored in checkpoints; torchao_int8 and torchao_float8 (weight only); or "
        "TransformerEngine's float8 (fp8_param_gather, with method lora or qlora); null: what the checkpoint's "
        "config.json says, or nf4 with method qlora",
        choices=("nf4", "fp4", "int8", "gptq", "awq", "finegrained_fp8", "torchao_int8", "torchao_float8", "float8"),
        flag="quantization",
        aka="bnb_4bit_quant_type quant quant_type quantize",
    )
    double_quant: bool = field(
        False,
        trl("ModelConfig.use_bnb_nested_quant"),
        "quantise the scales too (nf4 and fp4)",
        aka="bnb_4bit_use_double_quant use_bnb_nested_quant",
    )
    experts: bool = field(
        False,
        Origin("tunecast", "transformers' integrations/bitsandbytes.py replaces linear layers alone", False),
        "quantise the stacked weights of experts too, which bitsandbytes leaves as they are (nf4, fp4 and int8; "
        "Axolotl's quantize_moe_experts and llama4_linearized_experts)",
        flag="quantize-experts",
        aka="quantize_moe_experts",
    )
    prepare_kbit: bool = field(
        True,
        Origin(
            "tunecast",
            "PEFT's quantization guide calls prepare_model_for_kbit_training, TRL's SFTTrainer does not",
            True,
        ),
        "call prepare_model_for_kbit_training: what is not quantised becomes float32; with gptq and torchao "
        "nothing is cast; awq and finegrained_fp8 train without it unless it is set",
    )


@dataclass(frozen=True)
class Data(Section):
    tokens: int | None = field(None, OURS, "tokens in the data set, 20M for 20 million", within=(1, 10**16), kilo=1000)
    samples: int | None = field(None, OURS, "samples in the data set, instead of tokens", within=(1, 10**13), kilo=1000)
    lengths: tuple[int, ...] | str | None = field(
        None,
        OURS,
        "tokens per sample: a list, a file with one, a distribution such as uniform(50, 900), "
        "lognormal(median=300, p90=1200) or percentiles(0=20, 50=300, 100=2048), or the name of a data set: "
        "alpaca, alpaca-cleaned, alpaca-gpt4, alpaca-gpt4-zh, code-alpaca, dolly, gsm8k, longform; null: seq_len "
        "for all",
        within=(1, 10_000_000),
    )
    path: str | None = field(
        None,
        OURS,
        "the training data itself, whose samples and lengths are counted: .jsonl, .json, .csv, .tsv, .txt, "
        ".parquet, .arrow, or a folder of them",
        aka="dataset_path data_path",
        flag="data-path",
    )
    tokenizer: str | None = field(
        None,
        OURS,
        "with data.path: folder whose tokenizer.json counts the tokens; null: the model's own if it is on this "
        "machine, else tokens are estimated from characters",
        aka="tokenizer_path",
    )
    append_eos: bool | None = field(
        None,
        OURS,
        "with data.path: append an end-of-sequence token to each text; null: as the stack does (TRL does, a "
        "script around the Trainer does not)",
        aka="add_eos_token",
    )
    completion_only: bool = field(
        True,
        trl("SFTConfig.completion_only_loss", None),
        "with data.path: for prompts with completions, only the completions have labels",
        aka="completion_only_loss",
    )
    epochs: float = field(
        3.0,
        transformers("TrainingArguments.num_train_epochs"),
        "passes over the data set",
        within=(0, 1e6),
        above_low=True,
        aka="num_train_epochs num_epochs epoch train_epochs",
    )
    packing: bool = field(
        False, trl("SFTConfig.packing"), "pack samples into rows of seq_len tokens", aka="sample_packing"
    )
    packing_strategy: str = field(
        "bfd",
        trl("SFTConfig.packing_strategy"),
        "with packing: best fit, truncating long samples (bfd) or splitting them (bfd_split), or cut wherever a "
        "row is full (wrapped)",
        choices=("bfd", "bfd_split", "wrapped"),
    )
    group_by_length: bool = field(
        False,
        transformers("TrainingArguments.train_sampling_strategy", "random"),
        "batch samples of similar length: train_sampling_strategy group_by_length",
    )
    pad_to_multiple_of: int | None = field(
        None,
        trl("SFTConfig.pad_to_multiple_of", "auto"),
        "pad batches to a multiple of this many tokens; null: to their longest row",
        within=(1, 65536),
    )
    max_tokens_per_batch: int | None = field(
        None,
        OURS,
        "fill each batch up to this many tokens, padding included, instead of with micro_batch rows",
        within=(1, 10**9),
        aka="max_tokens",
        kilo=1024,
    )
    drop_last: bool = field(
        False,
        transformers("TrainingArguments.dataloader_drop_last"),
        "drop an epoch's last batch if it is not full",
        aka="dataloader_drop_last",
    )
    seed: int = field(
        42,
        transformers("TrainingArguments.seed"),
        "seed of the sample order: data_seed, or seed if that is not given",
        within=(0, 2**32 - 1),
        aka="data_seed random_state",
    )
    workers: int = field(
        0,
        transformers("TrainingArguments.dataloader_num_workers"),
        "data loader processes per card; 0: the training process itself",
        within=(0, 1024),
        aka="dataloader_num_workers num_workers",
    )
    prepared: bool = field(
        False,
        OURS,
        "the data set is already tokenised: nothing is done to it before training",
        aka="skip_prepare_dataset",
    )
    num_proc: int = field(
        1,
        trl("SFTConfig.dataset_num_proc", None),
        "processes that tokenise the data set before training",
        within=(1, 1024),
        aka="dataset_num_proc preprocessing_num_workers dataset_processes",
    )
    eval_samples: int | None = field(
        None, OURS, "samples to evaluate on, of the same lengths as those trained on", within=(1, 10**13), kilo=1000
    )
    held_back: float | None = field(
        None,
        OURS,
        "samples held back from training for evaluation: a fraction below 1, else a count",
        within=(0, 10**13),
        above_low=True,
        aka="val_set_size val_size test_size split_dataset_ratio",
    )

    @property
    def has_lengths(self) -> bool:
        """Whether something says how long the samples are."""
        return self.lengths is not None or self.path is not None


@dataclass(frozen=True)
class Run(Section):
    max_steps: int | None = field(
        None,
        transformers("TrainingArguments.max_steps", -1),
        "optimizer steps of the whole run; null: as data and epochs give",
        within=(1, 10**12),
    )
    eval_strategy: str = field(
        "no",
        transformers("TrainingArguments.eval_strategy"),
        "when to evaluate",
        choices=("no", "steps", "epoch"),
        aka="evaluation_strategy",
    )
    eval_steps: int | None = field(
        None,
        transformers("TrainingArguments.eval_steps"),
        "with eval_strategy steps: steps between evaluations; null: 500, as logging_steps",
        within=(1, 10**12),
    )
    evals_per_epoch: float | None = field(
        None,
        OURS,
        "with eval_strategy steps: evaluations per epoch, evenly spread over the run, instead of eval_steps "
        "(axolotl's)",
        within=(0, 1e6),
        above_low=True,
    )
    eval_max_batches: int | None = field(
        None,
        OURS,
        "most batches that each device evaluates; null: all of eval_samples",
        within=(1, 10**12),
        aka="max_validation_steps eval_iters",
    )
    eval_batch: int = field(
        8,
        transformers("TrainingArguments.per_device_eval_batch_size"),
        "rows per device per evaluation batch",
        within=(1, 1_000_000),
        aka="per_device_eval_batch_size eval_batch_size",
    )
    save_strategy: str = field(
        "steps",
        transformers("TrainingArguments.save_strategy"),
        "when to save a checkpoint; with steps also at the end",
        choices=("no", "steps", "epoch"),
    )
    save_steps: int = field(
        500, transformers("TrainingArguments.save_steps"), "steps between checkpoints", within=(1, 10**12)
    )
    saves_per_epoch: float | None = field(
        None,
        OURS,
        "with save_strategy steps: checkpoints per epoch, evenly spread over the run, instead of save_steps "
        "(axolotl's)",
        within=(0, 1e6),
        above_low=True,
    )
    save_total_limit: int | None = field(
        None,
        transformers("TrainingArguments.save_total_limit"),
        "checkpoints to keep; null: all",
        within=(1, 10**6),
    )
    save_only_model: bool = field(
        False,
        transformers("TrainingArguments.save_only_model"),
        "save the model alone: no optimizer, scheduler or random state, so a run cannot resume",
    )


@dataclass(frozen=True)
class Hardware(Section):
    gpu: str = field(
        "h200-sxm-141gb", OURS, "card, such as h100-sxm-80gb, rtx-4090 or l40s", aka="gpu_type gpu_name card"
    )
    gpus: int = field(
        1, OURS, "cards per node", within=(1, 1024), aka="num_gpus n_gpus gpu_count nproc_per_node gpus_per_node"
    )
    nodes: int = field(1, OURS, "number of machines (nodes)", within=(1, 100_000), aka="num_nodes nnodes")
    capacity_bytes: int | None = field(
        None, OURS, "pretend that the card has this much memory for the allocator", kind="bytes", within=(1, 2**50)
    )
    reserve_bytes: int = field(
        0,
        OURS,
        "memory on the card held by others: a display, another process",
        kind="bytes",
        within=(0, 2**50),
        null_is=0,
        flag="reserve",
    )
    interconnect: str | None = field(
        None,
        OURS,
        "link between the cards of a node, such as nvlink4 or host-pcie4-x16; null: the card's own",
        aka="intra_node_interconnect",
    )
    inter_node_gbps: float | None = field(
        None,
        OURS,
        "line rate between nodes, in Gb/s per card; null: that of the card's reference machine",
        within=(0, 1e5),
        above_low=True,
        aka="inter_node_bandwidth network_gbps",
    )
    launch_us: float | None = field(
        None,
        OURS,
        "microseconds the host's CPU takes to launch an operation; null: those of a current server",
        within=(0, 1e4),
        above_low=True,
    )
    provisioning_s: float = field(
        0.0, OURS, "seconds from ordering the machine to a shell; 0: already available", within=(0, 10**7), null_is=0.0
    )
    image_bytes: int = field(
        0,
        OURS,
        "size of the container image still to be pulled",
        kind="bytes",
        within=(0, 2**50),
        null_is=0,
        flag="image",
    )
    download_bytes_per_s: int | None = field(
        DOWNLOAD_BYTES_PER_S,
        OURS,
        "download rate of model and image, in bytes per second; null: the model is already on disk",
        kind="bytes",
        within=(1, 2**50),
        flag="download-rate",
    )
    disk_bytes_per_s: int | None = field(
        None,
        OURS,
        "disk rate for reading the model and writing checkpoints, in bytes per second; null: as through the page cache",
        kind="bytes",
        within=(1, 2**50),
        flag="disk-rate",
    )
    nvme_bytes_per_s: int | None = field(
        None,
        OURS,
        "rate of all NVMe drives of a machine together, in bytes per second, with parallel.offload_device nvme; "
        "null: that of one PCIe 4 drive",
        kind="bytes",
        within=(1, 2**50),
        flag="nvme-rate",
    )
    host_w: float | None = field(
        None,
        OURS,
        "power of a machine without its cards, in watts; null: about half of what its cards take",
        within=(0, 10**6),
    )
    pue: float | None = field(
        None,
        OURS,
        "power of the data centre divided by that of its machines; null: 1.3",
        within=(1, 10),
        aka="power_usage_effectiveness",
    )
    country: str | None = field(None, OURS, "where it runs, for the CO2 of its electricity: DE, DEU or Germany")

    @property
    def cards(self) -> int:
        """Of all machines."""
        return self.gpus * self.nodes
