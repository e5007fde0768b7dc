"""Objects that `--on kubernetes` renders, against the published models of their API."""
