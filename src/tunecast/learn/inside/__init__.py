"""What runs inside a training or beside it, with Python's standard library alone (torch where the program has it):
these files are shipped with a job as they are, as `tunecast_run`.

batches.py        The batches of a data loader, counted on the host before they go to the card, and how long the loop
                  waits for them
callback.py       A callback of transformers' Trainer, and so of TRL's trainers, Axolotl and LLaMA-Factory
export.py         What was measured, for the trackers that a program has on itself: Weights & Biases, MLflow, Trackio
host_memory.py    Whether the kernel ended a program because the memory of its machine, or of its container, was full
journal.py        The journal of a run: JSON Lines, append only
live.py           Measured against predicted while a run goes on: one line, and what is wrong with it, each by a rule
                  with its cause
loop.py           Any training loop, measured: `with watching(...) as watch:
machine.py        What a run ran on: card, processor, memory and the releases of what trains
measure.py        What one process of a training measures of itself
merge.py          One record from what every process of a run measured and what was seen from outside
nvml.py           NVIDIA's management library (libnvidia-ml.so.1), by ctypes: what the cards say of themselves, from
                  outside a program
outside.py        Any program, run as it is and looked at from outside; Python programs with transformers' Trainer
                  from inside too
process.py        One process of a training, from its first sight to its end: what it measures, and the journal of it
record.py         Beside a launched job: puts the files that measure it in their place, and runs the job's command
                  with them
sampler.py        The cards and the processes of a run, looked at from outside about twice a second
sitecustomize.py  In a folder first on PYTHONPATH: every Python that a watched program starts runs this, then the
                  sitecustomize it would have run
telling.py        What is said to people while a run goes on: one line again and again, and each warning once
"""
