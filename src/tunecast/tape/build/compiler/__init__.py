"""What torch.compile does with a graph, on paper (see `tape/build/compiled.py` and `tape/build/unsloth/compiled.py`).

record.py, decompose.py             a function run once on paper: the joint graph (`graph.py`)
partition.py                        what is saved for the backward pass
decompose.py  Operations Inductor takes apart, as it takes them apart (torch/_decomp/decompositions.py, torch/_refs)
execute.py    runs it for the sizes of one batch
fuse.py       kernels and their memory, for `Region`
graph.py      A graph of operations: what torch.compile looks at, with the names ATen has for them
launches.py   The kernels that compiled code launches and its named buffers (torch 2.11, _inductor/scheduler.py)
memory.py     What compiled code allocates and frees, line by line (torch 2.11, _inductor/codegen: wrapper.py and
              memory_planning.py)
order.py      the order with the lowest estimated peak
partition.py  What a compiled forward pass keeps for the backward pass, and what that computes again
passes.py     the two halves of the joint graph, and what is done to them
realize.py    Which values of a graph get memory
record.py     A function run once on paper with a machine that writes down operations in place of memory: the joint
              graph
realize.py, fuse.py                 which values get memory, and which of them one kernel makes
launches.py                         the same with Inductor's names for buffers, for code compiled for any batch
memory.py                           the memory it is given, line by line
"""
