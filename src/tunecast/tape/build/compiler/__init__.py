"""What torch.compile does with a graph, on paper: record, partition, fuse, order (see `tape/build/compiled.py`)."""
