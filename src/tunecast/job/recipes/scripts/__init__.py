"""Python scripts and notebooks, read without running them: what they call, and with which values.

`read_script(path)` follows assignments from the first line to the last: values in variables, arithmetic, f-strings,
defaults of argparse and of dataclasses, functions of the script's own. What hangs on more than its text is `UNKNOWN`.

data_sets.py    The data a script trains on, and how long its tokenizer lets a row be
expressions.py  What an expression is worth
parsers.py      What argparse and transformers' HfArgumentParser give where no argument is given
script.py       What a script calls, as documents that readers take keys from
shown.py        The command that a script's own text shows to start it with, as its docstring has it: what it sets
source.py       The statements of a script or notebook, with the lines of its file
statements.py   What statements assign, define and call
training.py     The training in a script: its trainer, its arguments, its model, and what is put into that
values.py       What a name may stand for: a plain value, something made by a call, or nothing that is known
"""

from tunecast.job.recipes.scripts.script import ScriptDocument, ScriptSource, read_script
from tunecast.job.recipes.scripts.values import UNKNOWN, DottedName, Made

__all__ = ["UNKNOWN", "DottedName", "Made", "ScriptDocument", "ScriptSource", "read_script"]
