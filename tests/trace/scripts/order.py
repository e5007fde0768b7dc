"""Asserts that data come in the order real torch draws: argv holds what it drew, as JSON."""

from __future__ import annotations

import json
import sys

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler, random_split

torch.manual_seed(7)
torch.nn.Linear(30, 20)  # initial weights move the generator
drawn = {
    "permutation": torch.randperm(10).tolist(),
    "shuffled": [batch.tolist() for batch in DataLoader(range(10), batch_size=5, shuffle=True)],
    "weighted": list(WeightedRandomSampler([1.0, 5.0, 2.0], 6)),
    "split": list(random_split(range(8), [4, 4])[0].indices),
}
if sys.argv[1:]:  # the card's generator is another one
    torch.randint(0, 9, (5,), device="cuda")
drawn["after the card drew"] = int(torch.randint(0, 1000, ()))
if sys.argv[1:]:
    assert drawn == json.loads(sys.argv[1]), drawn
else:
    print(json.dumps(drawn))
