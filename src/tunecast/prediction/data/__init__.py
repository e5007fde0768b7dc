"""From the samples of a data set to the micro-batches a job trains on.

batches.py        Which micro-batches a job trains on, in their order: the Trainer's, accelerate's and TRL's own,
                  without torch
lengths.py        From the micro-batches of a job to what is said of an epoch: steps, padding, and how often which
                  length comes
own_batches.py    The memory of a job's own batches: its steps one after the other, each micro-batch as long and as
                  full as it comes
packing.py        How TRL packs samples into rows: the algorithm itself, on lengths alone
preparation.py    Preparing the data before training: its text is downloaded and tokenised on the host, as
                  `datasets.map` does it
torch_random.py   The numbers of torch's generator on the CPU, without torch: a Mersenne twister seeded the plain way
training_data.py  What is said of training data: how long its samples are and, of a job, which rows and batches they
                  become
"""
