"""What a program can ask, each question one function: the commands and Python go through here.

accelerate.py     accelerate's configuration, from its YAML file or the launcher's flags, as the environment its
                  launcher would set
asking.py         A question that is many predictions: each job is asked for once, and what goes with an answer cannot
                  take it away
cards.py          A job's need against every card of the catalogue, in one answer
catalogue.py      What can be named: cards, machines and links, bundled models
compare.py        What differs between two jobs, and what each difference costs
data.py           What training data holds: how many samples and tokens, how long they are, and what a job makes of
                  them
diff.py           What changed training files of a git repository needed and cost before, and what they do now
diff_file.py      One training file in two states, in a process of its own: what a file from anyone takes ends there
explain_oom.py    What filled the card that ran out of memory, and what to change
filters.py        Which offers are meant: the options that `tunecast offers` and `tunecast plan` share, by the names
                  of their flags
fit.py            The smallest changes, least harm first, after which a job fits its card; of a job that fits, what
                  makes it faster
following.py      Launchers that a script starts itself, and cards that its launcher shows it
largest.py        The most that fits a card: the largest bundled model, the longest sequence, the largest micro-batch
launch.py         A job, a plan or the file somebody trains with, started on an engine; and what was started
launch_many.py    Several jobs launched together: each gets its machine, the engine queues them, and what was started
                  is found again
launch_source.py  What a launch begins from: a job, a plan or its JSON, or the file somebody trains with
launched.py       What was launched from this machine: how it stands, what it printed, and its end
launchers.py      What stands before the script on a command line: `python`, `torchrun`, `accelerate launch`, or
                  nothing
learned.py        What was learned from measured runs: shown, compared with the shipped prediction, and taken back
live.py           Measured runs as whoever looks on sees them: the store is read and never made, and a run that goes
                  on has the last line that compared it with its prediction
offers.py         What machines with GPUs cost, and whether one is free
placing.py        Which machine each of several jobs gets: by plan, each its cheapest, or of machines that they share;
                  and what that saves against one kind of machine for all of them
plan.py           Which machines to rent for a job, with which settings, how long it takes and what it costs in all
predict.py        What a job needs, how long it takes and, where asked for, what its machines cost
programs.py       Programs that an environment installs: `trl sft`, `llamafactory-cli train`, `axolotl train`, any
                  entry point
read.py           A job from what describes it: a file, a model's name, a mapping, another job; with other values
                  where asked for
recorded.py       What launched jobs measure of themselves: the line of one that runs, the record of one that is over
revisions.py      Two states of a git repository side by side, in folders of their own: nothing is checked out,
                  nothing is executed
runs.py           Measured runs: listed, shown, taken in, given away, forgotten
script_fit.py     The smallest changes to a script's own arguments after which it fits its card, each verified by
                  tracing it again
script_plan.py    Which machines to rent for a script that was traced, how long it takes there and what it costs in
                  all
script_cards.py   The cards of a traced script: what a tape takes of one, and which others it talks to
script_words.py   How a traced script went, in words: what is taken for granted, what is missing, where it failed
shell.py          Shell scripts that end in a training: `bash run.sh ARGS`, `sbatch run.slurm`
suggestions.py    What goes with a prediction that people read: what to change, what was not given, what the whole run
                  costs
trace.py          The GPU memory of a training script: its first steps, run as they are on tensors without contents
watch.py          A training that is measured while it runs: any program, a Trainer's callback, any loop
"""
