"""Operations that are several kernels, by name; all others are one.

Counted in aten/src/ATen/native/cuda of torch 2.11: what fills zeros first, what sorts (a radix sort of 64-bit keys is
four passes and a histogram), what reduces in two stages. Attention's backward pass first sums gradient times output,
and last converts what it added up in float32.
"""

from __future__ import annotations

SEVERAL = {
    "slice_backward": 2, "select_backward": 2, "nll_loss_backward": 2, "constant_pad_nd": 2, "scatter": 2,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2,
    "_scaled_dot_product_cudnn_attention_backward": 3, "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 3, "flash_attn::bwd": 3, "flash_attn_3::bwd": 3,
    "te::fused_attn_bwd": 3,
    "sort": 6, "topk": 4, "histc": 3, "cumsum": 2, "nonzero": 4, "argwhere": 5, "embedding_dense_backward": 10,
    "index_put": 9, "multinomial": 12,
}  # fmt: skip
