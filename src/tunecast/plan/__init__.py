"""The plan: which machines to rent for a job, with which settings, at what total cost and in what time.

space      rigs (cards, machines, links, with their offers) x settings (recipe, spread, split of the batch)
bounds     what a setting takes at least: memory, time, cost
estimate   the one place that asks predict/;  bill: what that costs on an offer
search     every setting cut by a floor or predicted ► pareto: the front
objective  the picks and why;  constraints: limits, refusals, what would have to give
plan       all of it: a job and offers in, a `choice.Plan` out
fit*       the smallest changes that make a job fit a card
"""

from __future__ import annotations
