"""Operations on tensors without contents: what each makes and saves, and what its gradient makes, in torch's order.

Gradient formulas are those of tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp; where two
inputs want a gradient the generated code computes the one first whose name comes first (`mat2` before `self`).
"""

from __future__ import annotations

from tunecast.tape.build.ops.elementwise import (
    _pair as _pair,
)
from tunecast.tape.build.ops.elementwise import (
    add as add,
)
from tunecast.tape.build.ops.elementwise import (
    broadcast as broadcast,
)
from tunecast.tape.build.ops.elementwise import (
    by_input as by_input,
)
from tunecast.tape.build.ops.elementwise import (
    by_result as by_result,
)
from tunecast.tape.build.ops.elementwise import (
    cat as cat,
)
from tunecast.tape.build.ops.elementwise import (
    clamp as clamp,
)
from tunecast.tape.build.ops.elementwise import (
    divide as divide,
)
from tunecast.tape.build.ops.elementwise import (
    dropout as dropout,
)
from tunecast.tape.build.ops.elementwise import (
    elementwise_strides as elementwise_strides,
)
from tunecast.tape.build.ops.elementwise import (
    expand as expand,
)
from tunecast.tape.build.ops.elementwise import (
    gelu as gelu,
)
from tunecast.tape.build.ops.elementwise import (
    gelu_fast as gelu_fast,
)
from tunecast.tape.build.ops.elementwise import (
    gelu_new as gelu_new,
)
from tunecast.tape.build.ops.elementwise import (
    map_ as map_,
)
from tunecast.tape.build.ops.elementwise import (
    masked_fill as masked_fill,
)
from tunecast.tape.build.ops.elementwise import (
    mean as mean,
)
from tunecast.tape.build.ops.elementwise import (
    multiply as multiply,
)
from tunecast.tape.build.ops.elementwise import (
    negative as negative,
)
from tunecast.tape.build.ops.elementwise import (
    pad_last as pad_last,
)
from tunecast.tape.build.ops.elementwise import (
    power as power,
)
from tunecast.tape.build.ops.elementwise import (
    promoted as promoted,
)
from tunecast.tape.build.ops.elementwise import (
    reduced as reduced,
)
from tunecast.tape.build.ops.elementwise import (
    relu as relu,
)
from tunecast.tape.build.ops.elementwise import (
    rsqrt as rsqrt,
)
from tunecast.tape.build.ops.elementwise import (
    scale as scale,
)
from tunecast.tape.build.ops.elementwise import (
    shift as shift,
)
from tunecast.tape.build.ops.elementwise import (
    sigmoid as sigmoid,
)
from tunecast.tape.build.ops.elementwise import (
    silu as silu,
)
from tunecast.tape.build.ops.elementwise import (
    stack_last as stack_last,
)
from tunecast.tape.build.ops.elementwise import (
    subtract as subtract,
)
from tunecast.tape.build.ops.elementwise import (
    sum_to as sum_to,
)
from tunecast.tape.build.ops.elementwise import (
    tanh as tanh,
)
from tunecast.tape.build.ops.elementwise import (
    total as total,
)
from tunecast.tape.build.ops.products import (
    _flat_t as _flat_t,
)
from tunecast.tape.build.ops.products import (
    _mat1_gradient as _mat1_gradient,
)
from tunecast.tape.build.ops.products import (
    _mat2_gradient as _mat2_gradient,
)
from tunecast.tape.build.ops.products import (
    add_batched_product as add_batched_product,
)
from tunecast.tape.build.ops.products import (
    add_matrix_product as add_matrix_product,
)
from tunecast.tape.build.ops.products import (
    batched_product as batched_product,
)
from tunecast.tape.build.ops.products import (
    cast_for_product as cast_for_product,
)
from tunecast.tape.build.ops.products import (
    linear as linear,
)
from tunecast.tape.build.ops.products import (
    matmul as matmul,
)
from tunecast.tape.build.ops.products import (
    matrix_product as matrix_product,
)
from tunecast.tape.build.ops.products import (
    product as product,
)
from tunecast.tape.build.ops.products import (
    rows_follow_each_other as rows_follow_each_other,
)
from tunecast.tape.build.ops.tables import (
    add_in_place as add_in_place,
)
from tunecast.tape.build.ops.tables import (
    by_count as by_count,
)
from tunecast.tape.build.ops.tables import (
    cross_entropy as cross_entropy,
)
from tunecast.tape.build.ops.tables import (
    embedding as embedding,
)
from tunecast.tape.build.ops.tables import (
    integers as integers,
)
from tunecast.tape.build.ops.tables import (
    layer_norm as layer_norm,
)
from tunecast.tape.build.ops.tables import (
    negative_log_likelihood as negative_log_likelihood,
)
from tunecast.tape.build.ops.tables import (
    repeat_interleave as repeat_interleave,
)
from tunecast.tape.build.ops.tables import (
    safe_softmax as safe_softmax,
)
from tunecast.tape.build.ops.tables import (
    scale_in_place as scale_in_place,
)
from tunecast.tape.build.ops.tables import (
    softmax as softmax,
)
from tunecast.tape.build.ops.tables import (
    summed as summed,
)
from tunecast.tape.build.ops.views import (
    alias as alias,
)
from tunecast.tape.build.ops.views import (
    cast_to_float32 as cast_to_float32,
)
from tunecast.tape.build.ops.views import (
    chunk as chunk,
)
from tunecast.tape.build.ops.views import (
    clone as clone,
)
from tunecast.tape.build.ops.views import (
    contiguous as contiguous,
)
from tunecast.tape.build.ops.views import (
    dense_strides as dense_strides,
)
from tunecast.tape.build.ops.views import (
    kept_strides as kept_strides,
)
from tunecast.tape.build.ops.views import (
    permute as permute,
)
from tunecast.tape.build.ops.views import (
    reshape as reshape,
)
from tunecast.tape.build.ops.views import (
    select as select,
)
from tunecast.tape.build.ops.views import (
    slice_ as slice_,
)
from tunecast.tape.build.ops.views import (
    split as split,
)
from tunecast.tape.build.ops.views import (
    squeeze as squeeze,
)
from tunecast.tape.build.ops.views import (
    to as to,
)
from tunecast.tape.build.ops.views import (
    transpose as transpose,
)
from tunecast.tape.build.ops.views import (
    unsqueeze as unsqueeze,
)
from tunecast.tape.build.ops.views import (
    view as view,
)
from tunecast.tape.build.ops.views import (
    view_of as view_of,
)
from tunecast.tape.build.ops.views import (
    view_strides as view_strides,
)
from tunecast.tape.build.ops.views import (
    whole_shape as whole_shape,
)
