"""The command line. stdout carries only results, stderr the rest; no traceback reaches a user.

    main.py         which command, and what every ending looks like
    predict.py      tunecast predict JOB...           trace.py        tunecast trace -- train.py
    largest.py      tunecast largest --gpu 4090       compare.py      tunecast compare A B
    gpus.py         tunecast gpus                     explain_oom.py  tunecast explain-oom < log
    models.py       tunecast models [TEXT...]
    asking.py       what commands share that ask an engine many times
    arguments.py    parsers that take other trainers' names, and whose refusals name the nearest right thing
    hints.py        what an unknown command or flag means here
    usage.py        --help on one screen, --help-all
    completion.py   tunecast completion bash|zsh|fish
    launchers.py    what stands before the script: python, torchrun, accelerate launch
    accelerate.py   accelerate's configuration as the environment its launcher sets
    files.py        files asked for with --html and --snapshot
    terminal.py     what stdout and stderr can show; the line that counts the seconds

A command is one file with `run(argv) -> exit code` and a line in `main.COMMANDS`; nothing of it is imported before it
is asked for, so that `tunecast --version` takes no longer than Python itself.
"""
