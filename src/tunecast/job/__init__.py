"""A job: what is to be trained, how and where; read from a file, flags or a model's name.

catalogue.py       The bundled models, searched by words and described: what can be named without a network
check.py           What contradicts what in a job
check_images.py    What contradicts what in what a job says of images (rules of `check.py`)
check_parallel.py  What contradicts what in how a job is split over its cards (rules of `check.py`)
check_tasks.py     What contradicts what in what a job is trained for (rules of `check.py`)
comment.py         What a file asks in a comment of its own: `# tunecast: gpu=rtx-4090 gpus=2 within=6h eu budget=50`
config_keys.py     What kind of value each key of a config.json has, as far as anything here reads it
defaults.py        docs/defaults.md, made from the fields themselves
fetch.py           One request to a server that is not trusted: bounded in bytes and in time, the token for its own
                   host only
flags.py           The command line's flags for a job, derived from its fields: no second list to keep
foreign.py         What other trainers call a job's fields and values: the names flags, `--set` and `--to` accept
                   besides our own
further.py         Models that a job names beside the one it trains, by the part they play: a teacher, a reward model
hub.py             The Hugging Face Hub, as little of it as is needed: config.json and the headers of safetensors
                   files
job.py             The Job: everything that decides what a fine-tuning run does to a GPU, as one frozen value
kernels.py         Packages of kernels: such as somebody chooses, and such as models take by themselves where they are
                   installed
knob.py            A knob: one field of a job
lengths.py         How long the samples of a data set are: a list, a file, or a distribution, as `data.lengths` of a
                   job says
mapping.py         A job from a mapping, as YAML, JSON or flags give it
model.py           A model's architecture from its config.json: bundled, on disk, or on the Hub
names.py           The names a job's choices go by, and other spellings of them
optimizers.py      The optimizers a job may name: transformers' `optim` names in its order, and what it has no name
                   for
own_data.py        What follows from the data a job names: its model's tokenizer, where that is here, and how many
                   samples are left to train on
parallel.py        How a job is split over cards: the fields of `parallel`
registry.py        The models tunecast knows without a network: models.toml tells of them, models/<name>.json is each
                   one's config.json
releases.py        The releases that are followed: of each package the oldest whose code was read, and those our tapes
                   were compared with, event for event
rules.py           A rule of what cannot be together in a job: the fields it is about, and what it says against their
                   values
safetensors.py     What a safetensors file holds, from its header alone: how many values of which dtype
sections.py        The parts of a job that have fields of their own
shardings.py       How data-parallel ranks may hold the model: the declaration of every `parallel.data`
spellings.py       Which bundled model a name means that is not listed as it is: by the rules of one table, each of
                   which is told
stacks.py          The training stacks a job may name: what each supports, sets and is known to do, as one light
                   declaration
stored.py          How a checkpoint's weights are packed, as the `quantization_config` of its config.json says
task_sections.py   What a job says about its task beyond the language model's own loss: preferences, rollouts, heads,
                   teachers, images
writer.py          Files that are written whole or not at all: a reader never sees half of one, and nothing is left
                   where it fails
images/            What the images of a sample are to a model: patches, tokens of its row, and the tensors they come
                   in
readers/           Jobs from wherever they are written: a file of one of the formats below, or a model's name with
                   flags
recipes/           The files people already train with, as jobs
texts/             Training data of any size: which files it is, what their rows hold, how many tokens that is
"""

from __future__ import annotations

from tunecast.job.job import Data, Hardware, Job, Lora, Parallel, Quantization, Run
from tunecast.job.mapping import job_from_dict
from tunecast.job.readers import JobError, read_jobs

__all__ = [
    "Data",
    "Hardware",
    "Job",
    "JobError",
    "Lora",
    "Parallel",
    "Quantization",
    "Run",
    "job_from_dict",
    "read_jobs",
]
