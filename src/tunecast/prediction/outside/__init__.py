"""What a run needs outside its training step: loading, saving, evaluating, resuming, host memory and disk.

checkpoint.py     What a checkpoint of the Trainer weighs on disk, from the model's tensors and the optimizer's state
evaluation.py     Evaluation between two steps, read off its tape
further.py        Checkpoints beside that of the model which is trained: a teacher's, a reward model's, a reference's
host_memory.py    The host's memory of one machine: that of all its ranks together
loading.py        Loading a model: the host's memory by formula, the card's read off the tape of from_pretrained
needs.py          What a run needs outside its training step: to load, to save, to evaluate, to resume; and the disk
                  for it
paper.py          The tensors of the model a job trains, by name, read off the closed form: nothing is run or loaded
                  for it
saving.py         Saving a checkpoint, how many of them lie on the disk, and going on from one
sharded_files.py  Files of a run under DeepSpeed's ZeRO, as the Trainer has them written
"""
