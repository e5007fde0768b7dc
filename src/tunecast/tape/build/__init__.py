"""The closed form: PyTorch on paper. A job's training step as a tape, in milliseconds, without torch.

adapted_by_pattern.py  Which layers NeMo Automodel adapts: those whose whole names are like a pattern
adapted_parameters.py  LoRA on stacked experts and routers, which are parameters and no linear layers
                       (peft/tuners/lora/layer.py, `ParamWrapper`; peft/utils/transformers_weight_conversion.py says
                       which names of a target list mean them)
adapters.py            PEFT on paper: which linear layers and experts are adapted, and how an adapted one runs; DoRA
attention.py           attention on paper
autograd.py            autograd on paper: nodes with saved tensors, and the engine that runs them backward
beside.py              A model beside the one that is trained: a teacher, a reward model
cache.py               Keys and values that a model keeps of tokens it has read (transformers/cache_utils.py of
                       5.17.0, `DynamicCache`)
checkpoint.py          `from_pretrained` with a device map, on paper: everything it does to the card
chunked.py             the fused head of TRL 1.16, which never makes all logits
compiled.py            `torch.compile` on paper
convolution.py         Causal convolutions of each channel by itself, on paper: torch's, which transformers takes
                       where causal-conv1d is not installed, and that package's own (causal-conv1d 1.7.0)
cut_head.py            Apple's Cut Cross-Entropy on paper (cut-cross-entropy 25.6.4): head and loss as one function
                       that makes no logits
decoder.py             the causal language model on paper, after transformers' modeling files (5.17.0)
divergence.py          The head of TRL's DistillationTrainer, which makes no logits: `ChunkedDivergenceFunction` of
                       trl/kernels/chunked_divergence.py (1.16.0)
dtypes.py              types of numbers, and the strides of a shape
eras.py                what older releases of transformers do otherwise with memory
event_log.py           what a program on paper does to memory and on its host, noted in order
experts.py             mixtures of experts on paper
fill_in.py             a job with what follows from its model filled in
fla.py                 flash-linear-attention on paper (fla-core 0.6.0): the gated delta rule in chunks of 64 tokens,
                       whose states are kept by nobody but computed again in the backward pass
flash.py               the flash-attn package and torch's flex attention on paper
float4.py              linear layers that multiply in NVFP4, on paper: torchao's `NVFP4Linear`
float8.py              linear layers that multiply in float8, on paper
foak.py                fms-acceleration's kernels ("foak") on paper
frozen.py              models of which some parameters are trained and all others frozen, on paper
functional.py          the functions of `torch` and `torch.nn.functional`, on tensors without contents
gptq.py                linear layers whose weights GPTQ has quantised to 4 bits, on paper
installed.py           Packages whose kernels models take by themselves: what is taken for granted about them
job_runs.py            from a job to its run on the fullest card
layer_rhythm.py        which layers of a model are alike
layouts.py             how the tensors of an operation lie in memory beside each other
liger.py               Liger's kernels on paper (liger-kernel 0.8.5)
liger_kin.py           What Liger has for architectures beyond those whose traces were compared (`liger.MODELS`), as
                       its source says
loads.py               the run of `from_pretrained` alone
log_probs.py           Log-probabilities of labels from whole logits, on paper; `chunked.py` is the head that makes
                       none
machine.py             the machine that runs a program on paper
mamba_ssm.py           mamba-ssm on paper (2.3.2): convolution, scan, gated norm and projection of Mamba 2 as one
                       function, which keeps its input and what the scan gave; all else is computed again in the
                       backward pass
masks.py               attention masks on paper, after transformers/masking_utils.py (5.17.0)
micro_batches.py       the structures of a job's own micro-batches, which have many lengths
modules.py             modules on paper
nested.py              Tensors in the tuples and dictionaries that modules take and give
offload.py             saved tensors that wait in host memory, on paper
older.py               what models did themselves before transformers had it in one place
quantized.py           weights that bitsandbytes holds in 4 or 8 bits, on paper: loading, forward, backward
recompute.py           recomputation on paper: both of torch's kinds of checkpointing
repeats.py             what a program does again, without running it
request.py             what a run is built of, and which of it decides the structure of its program
score.py               A head in the vocabulary's place: `score`, one output for each label
                       (transformers/modeling_layers.py of 5.17.0)
standing.py            what a short model says of the whole one
tensor.py              tensors without contents: what making and dropping them does to memory
written.py             the events of a tape, from what a machine noted
compiler/              what torch.compile does with a graph, on paper
families/              which file holds which architecture
ops/                   operations on tensors without contents
optimizers/            optimizers and gradient clipping on paper
packed/                Weights that others packed: what arrives from such checkpoints, what stays on the card, and how
                       layers run on it
sharding/              how one rank of many holds a model: replicas, shards, and what waits on the host
stacks/                whose program trains
tasks/                 What is trained for beyond the language model's own loss: one program per task, over the
                       Trainer's loop
unsloth/               Unsloth 2026.10.9 on paper: what its own code does
vision/                Models with eyes, on paper: a vision tower, a projector and a language model, all in one
                       `model`

It is written as the real code is: a local name holds a tensor here as long as it does there, so frees fall where they
fall. The tracer is its referee (tests/trace/test_build.py): same allocations, same order. Where a new release of
transformers moves something, the test names the first allocation that differs, and the family's file is the place.
"""
