"""The time of a step, of an epoch and of a whole job, with its range; utilisation and energy.

by_length.py     Step times by padded length: a few lengths are priced, and the mean step of an epoch follows
calibration.py   What was measured on a machine of the user's, and what prices become with it
energy.py        Energy of a whole job in kWh, and the CO2 of that electricity
pipeline.py      Pipeline schedules: how long a step takes, how long stages idle, how many micro-batches a stage
                 holds. Pure
ranges.py        How far a predicted step may be off: an 80 % range, from what measured steps show
ranges_table.py  How far measured steps lie from their predictions. Written by `benchmarks/time_ranges.py`; do not
                 edit
reasons.py       Why a step takes as long as it does, in sentences; and what the host must have
runtime.py       The time of one optimizer step: the host and the card run beside each other
script_time.py   How long a traced script takes: its own operations, priced as those of a job are; by step, epoch,
                 whole run, line
stages.py        The time of a step whose layers are spread over pipeline stages, or over cards that work one after
                 another
timing.py        What is said of a job's time, utilisation and energy: the parts of a prediction beside memory
vllm.py          Seconds of a generation by vLLM, as an estimate with a wide range: `generation_s`
whole.py         A whole job in seconds, phase by phase: from an empty machine to the saved model
"""
