"""The command line. stdout carries only results, stderr the rest; no traceback reaches a user.

answers.py       How a command prints its answer: as JSON, in one line, or as text for the terminal that reads it
arguments.py     parsers that take other trainers' names, and whose refusals name the nearest right thing
asking.py        what commands share that ask an engine many times
calibrate.py     `tunecast calibrate`: measure this machine's GPU, so that predictions for it use its own figures
calibration.py   `tunecast calibration show|diff|reset`: what was learned from measured runs, what it changes, and how
                 to take it back
cancel.py        `tunecast cancel ID`: stop a launched job
compare.py       `tunecast compare A B`: what differs between two jobs, and what each difference costs
completion.py    `tunecast completion bash|zsh|fish`
cores.py         many jobs on all cores
data.py          `tunecast data PATH`: how many samples and tokens training data has, how long they are, and what a
                 job makes of them
explain_oom.py   `tunecast explain-oom [JOB] train.log`: what filled the card, and what to change
files.py         files asked for with --html and --snapshot
filters.py       Flags that say which offers are meant, and in what money: `offers` and `plan` have the same
fit.py           `tunecast fit JOB --gpu 4090`: the smallest changes after which it fits, as a patch to the job's file
fit_script.py    `tunecast fit --gpu 4090 -- train.py`: the smallest changes to a script's own arguments after which
                 it fits
gpus.py          `tunecast gpus`: the GPUs that are known, with their figures and sources
hints.py         what an unknown command or flag means here
jobs.py          `tunecast jobs`: what was launched from this machine, and how it stands
largest.py       `tunecast largest --gpu 4090`: the largest model, sequence or batch that fits
launch.py        `tunecast launch JOB --on slurm`: a job, a plan or a trainer's file, started; `--dry-run` shows what
                 would be
logs.py          `tunecast logs ID`: what a launched job printed
lsp.py           `tunecast lsp`: the language server, on stdin and stdout
main.py          which command, and what every ending looks like
models.py        `tunecast models [TEXT...]`: the models that are bundled
nodes.py         `tunecast nodes [TEXT...]`: machines, and the links inside and between them
offers.py        `tunecast offers [TEXT...]`, `offers update`, `offers add FILE`, `offers remove TEXT...`: what
                 machines cost, and where that was read
pages.py         what a page says of itself
plan.py          `tunecast plan JOB`: which machines to rent, with which settings, at what total cost
plan_script.py   `tunecast plan -- train.py`: which machines to rent for a script, at what total cost
predict.py       `tunecast predict JOB...`: what a job needs, how long it takes, whether it fits
read.py          `tunecast read PATH [KEY=VALUE ...]`: the job understood from the file somebody trains with
runs.py          `tunecast runs [list|show|export|import|publish|prune]`: what was measured, and how near the
                 predictions were
runs_compare.py  `tunecast runs compare JOB`: the measured runs nearest to a job, and how far their predictions were
                 off
serve.py         `tunecast serve`: the page and the HTTP API, on this machine
several.py       Several jobs in one command: the lines of a file, and every value of a sweep (`--set
                 lora.rank=8,16,64`)
terminal.py      what stdout and stderr can show; the line that counts the seconds
trace.py         `tunecast trace -- train.py`: an unmodified script, run by the user's own interpreter on a card that
                 is not there
usage.py         --help on one screen, --help-all
watch.py         `tunecast watch [JOB] -- COMMAND`: any program, run as it is and measured

A command is one file with `run(argv) -> exit code` and a line in `main.COMMANDS`; nothing of it is imported before it
is asked for, so that `tunecast --version` takes no longer than Python itself.
"""
