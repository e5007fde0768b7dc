"""Operations on tensors without contents: what each makes and saves, and what its gradient makes, in torch's order.

elementwise.py  element by element: results laid out as their inputs are
images.py       What towers of vision and the models around them compute besides: patches, pools, and features put
                among tokens
layers.py       embeddings, norms, dropout, softmax and losses
products.py     matrix products, and what autocast casts before them
reductions.py   sums, means and the other reductions
scans.py        what layers with a running state use: cumulative sums, triangles, convolutions, parts in place
views.py        views and copies

`Tensor` has them as methods and operators under torch's names; what torch has as a function is in `functional.py`.
Gradient formulas are those of tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp; where two
inputs want a gradient the generated code computes the one first whose name comes first (`mat2` before `self`).
"""
