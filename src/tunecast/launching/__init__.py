"""From a plan to a running job: files and commands for a trainer and an engine, and what was started by them.

ledger.py     What was launched: a folder each, from before anything is started, so that no job is ever out of sight
offers.py     What a plan says of machines: its pick, what else it compared, and the most an hour of each may cost
pins.py       What a training is installed from: the releases that were predicted, as a requirements file and a
              container recipe
referee.py    What was rendered, read back: the reader of the trainer's files has to find the job that was predicted
rendering.py  What a launch is made of: a training program, and the files and commands with which an engine runs it
texts.py      Texts of rendered files: YAML and shell
engines/      Where a training runs, one file each: rendering is pure, submitting thin
preflight/    A check of the machine before a training starts there: preflight.py, and what was predicted in
              preflight.json
programs/     Training programs of other people, with a job's settings in their own words
"""
