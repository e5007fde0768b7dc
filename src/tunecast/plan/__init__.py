"""The plan: which machines to rent for a job, with which settings, at what total cost and in what time.

space ► bounds, constraints ► estimate (predict, offers) ► search ► objective, pareto ► choice.Plan
"""

from __future__ import annotations
