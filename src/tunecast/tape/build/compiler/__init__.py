"""What torch.compile does with a graph, on paper (see `tape/build/compiled.py` and `tape/build/unsloth/compiled.py`).

record.py, calls.py, decompose.py   a function run once on paper: the joint graph (`graph.py`)
partition.py, flow.py               what is saved for the backward pass
calls.py      How a library's kernel is called, with values in the place of tensors
decompose.py  Operations Inductor takes apart, as it takes them apart (torch/_decomp/decompositions.py, torch/_refs)
execute.py    runs it for the sizes of one batch
flow.py       Maximum flow, for the partitioner's minimum cut: Dinic's algorithm on lists
fuse.py       kernels and their memory, for `Region`
graph.py      A graph of operations: what torch.compile looks at, with the names ATen has for them
groups.py     Which buffers one kernel makes (torch/_inductor/scheduler.py of torch 2.11, `fuse_nodes`)
launches.py   The kernels that compiled code launches and its named buffers (torch 2.11, _inductor/scheduler.py)
lowering.py   Turns operations into kernel launches, with the buffer names Inductor would give: names decide the order
              of frees (torch 2.11, _inductor/graph.py, ir.py)
memory.py     What compiled code allocates and frees, line by line (torch 2.11, _inductor/codegen: wrapper.py and
              memory_planning.py)
order.py      the order with the lowest estimated peak
partition.py  What a compiled forward pass keeps for the backward pass, and what that computes again
passes.py     the two halves of the joint graph, and what is done to them
pools.py      Pools of memory for the buffers of one compiled graph (torch 2.11, _inductor/codegen/memory_planning.py)
realize.py    Which values of a graph get memory
record.py     A function run once on paper with a machine that writes down operations in place of memory: the joint
              graph
realize.py, groups.py               which values get memory, and which of them one kernel makes
lowering.py, launches.py            the same with Inductor's names for buffers, for code compiled for any batch
memory.py, pools.py                 the memory it is given, line by line
"""
