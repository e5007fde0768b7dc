"""A trainer each: what its keys say about a job, and the defaults of its release.

axolotl.py    Axolotl's YAML
"""
