"""From a job to its answer: `Prediction`, the one value that commands, reports, plans and Python read.

culprit.py     Whether a model cannot be built for its config.json, and then for which key, or for a fault of ours
engines.py     One question, two engines: what does a job need? `analytic` is the closed form, `traced` runs the real
               code
evidence.py    How many measured runs stand behind a prediction, and how far off predictions of such runs are
modelled.py    What the engines can be asked of a job
on_card.py     A tape on a card: replayed without limit, on the card, and under ever less
prediction.py  One value from a job to its answer, which every command, every report and Python read
               (`tunecast.prediction/1`)
remedies.py    Which engine a refusal may send somebody to: only one that answers the job
script_run.py  The run of a traced script as it is replayed, and in words what was traced of it
spreading.py   Which ways of spreading a job over cards the closed form knows; the rest is refused with a remedy
traced.py      A job's prediction by the traced engine: find the model, trace its training, replay the tape on the
               card
values.py      The parts of a prediction, named as the public contract's JSON is (docs/contract.md)
verdict.py     The verdict: "fits", "may not fit" or "does not fit", read off a prediction's range
data/          From the samples of a data set to the micro-batches a job trains on
lessons/       What measured runs say of a prediction: how it is corrected by them, and which are most like it
memory/        A step's allocations replayed through PyTorch's allocator
native/        The replay and the pricing in C
outside/       Loading, saving, evaluating, resuming, host memory and disk
price/         Seconds of one operation on a card
time/          A step, an epoch, a whole job; utilisation and energy
"""
