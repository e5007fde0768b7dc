"""The plan: which machines to rent for a job, with which settings, at what total cost and in what time.

space      rigs (cards, machines, links, with their offers) x settings (technique, spread, split of the batch)
bounds     what a setting takes at least: memory, time, cost
estimate   the one place that asks prediction/, each thing once;  bill: what that costs on an offer
search     every setting cut by a floor or predicted ► pareto: the front
objective  the picks and why;  constraints: limits, refusals, what would have to give
plan       all of it: a job and offers in, a `choice.Plan` out
price      what a job costs on its own machines;  comparison: two jobs beside each other
bill.py          What a timed run costs on an offer, and when it is over: phases from the prediction, terms from the
                 provider
bounds.py        What a setting takes at least: bytes of a card, seconds, dollars
choice.py        What a plan is made of: machines, choices, refusals, and the plan itself as the contract's
                 `tunecast.plan/1`
comparison.py    The answer of `tunecast compare` (`tunecast.compare/1`): two jobs, what each costs, and the steps
                 between them
constraints.py   What an answer has to keep to, what it means that none does, and what would have to give
estimate.py      What a setting takes on a rig: the one place where the planner asks the predictor
file_changes.py  The answer of `tunecast diff` (`tunecast.diff/1`): what changed training files needed and cost, and
                 do now
goals.py         What a search looks for: the front of what may be picked, and beside it the cheapest of other kinds
objective.py     Which choices of a front are the answers, and why each and not the next
plan.py          A plan from a job and offers: searched, picked, explained
price.py         What a job costs on its own hardware: the cheapest offer of exactly these machines that a plan would
                 pick unasked
savings.py       What of a choice's cost can be avoided: the same bill with a phase less, or with a setting that was
                 not searched
script_plan.py   A plan of a script: its trace on every card that is rented out, priced and billed as a job's are
search.py        The search: every setting of every rig is either cut by a proven floor or predicted, so no pick is
                 missed
sharing.py       Several jobs on machines that are there already: which runs where and in what order, so that all are
                 over by a deadline at least cost
space.py         What a plan may choose between: machines on one side, settings of the job on the other
taken.py         What a plan's job does not say, and what other values would change on the machine the answer begins
                 with
technique.py     What may be done on a card, whichever it is: the techniques of a job, as far as the user left them
                 open
fit/             the smallest changes that make a job fit a card
"""

from __future__ import annotations
