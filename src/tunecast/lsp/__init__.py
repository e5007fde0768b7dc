"""`tunecast lsp`: in an editor, beside the keys of a training's file, whether it fits and what each of them costs.

editor ──stdin, stdout──► protocol/ ──► watched.py, a file each ──answerer.py──► worker.py ──fork──► children

answerer.py    The server's side of its worker: one question of a file at a time, and the next one ends it
answers.py     What the worker answers: at once what a file says and whether it fits, then what takes longer, piece by
               piece
asked.py       What an editor's settings and a comment in the file say of the card and the limits of a plan
commands.py    What `tunecast plan`, `fit` and `launch --dry-run` say of a file as its editor has it: text, JSON, and
               the command that asks the same of the file once it is saved
completing.py  Where the cursor stands in a half-written file, and what may come there
costs.py       What the values a file has cost, and what others would: each is a job of its own that was predicted
positions.py   Places in a text as readers tell them and as the protocol counts them: lines from 0, columns in UTF-16
               units
reading.py     A file as its readers understand it, from an editor's buffer: what it says, what is wrong with it,
               whether it fits
remedies.py    What `tunecast fit` would change, as the text the file would have: read back, it is the job that was
               predicted
scripts.py     Python files: where a training is described and begun, and what a trace says of their lines
severity.py    How grave a problem is, as the protocol counts it (LSP, DiagnosticSeverity)
show.py        What an editor shows of a file, as plain values: marks, hints, lenses, the text of a hover
tracing.py     `tunecast trace --json` of a script, in the background, until it is done or nobody wants it any more
watched.py     What is known of one open file: of the text as it is now, or nothing
worker.py      The warm process that reads and predicts, and the children it forks for what takes longer
writing.py     What may be written in a file: its framework's keys, and values of those whose values are known
protocol/      The language server's side of its client: the only place that imports pygls
"""
