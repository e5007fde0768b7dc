"""The head of TRL's DistillationTrainer, which makes no logits: `ChunkedDivergenceFunction` of
trl/kernels/chunked_divergence.py (1.16.0). Tiles of 4096 tokens by 32768 words of both models, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.chunked import TILE_TOKENS, TILE_WORDS, add_product, rows_of
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.symbols import starts


def reverse_divergence(
    student: Tensor, weight: Tensor, teacher: Tensor, teacher_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """`ChunkedDivergenceFunction` at beta 1, which is the trainer's default: of each token KL(student || teacher), and
    the student's entropy."""
    machine, rows = student.machine, student.shape[0]
    dtype = machine.autocast or student.dtype

    def tiles() -> tuple[Tensor, Tensor]:
        shape = (min(rows, TILE_TOKENS), TILE_WORDS)
        return machine.run("empty", (), shape, FLOAT32), machine.run("empty", (), shape, FLOAT32)

    def project(buffer: Tensor, hidden: Tensor, weight: Tensor, word: int) -> Tensor:
        """`_project`: a tile of logits."""
        words = rows_of(weight, word, TILE_WORDS).to(dtype)
        tile = buffer.alias((hidden.shape[0], words.shape[0]), buffer.stride())
        machine.again = machine.in_backward
        machine.launch("mm", (hidden, words.transpose(0, 1)), dtype, tile.nbytes, 2 * hidden.numel() * words.shape[0])
        machine.again = False
        machine.keep_workspaces("mm")
        return tile

    def zeros() -> Tensor:
        return machine.run("zeros", (), (rows,), FLOAT32)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        student, weight, teacher, teacher_weight = (node.take(place) for place in range(4))
        grad_divergence = gradients[0].contiguous()
        grad_hidden = machine.run("zeros", (), student.shape, FLOAT32) if node.needs[0] else None
        grad_weight = machine.run("zeros", (), weight.shape, FLOAT32) if node.needs[1] else None
        s_buf, t_buf = tiles()
        for token in starts(rows, TILE_TOKENS):
            h_s = rows_of(student, token, TILE_TOKENS).to(dtype)
            h_t = rows_of(teacher, token, TILE_TOKENS).to(dtype)
            for word in range(0, weight.shape[0], TILE_WORDS):
                s_tile = project(s_buf, h_s, weight, word)
                t_tile = project(t_buf, h_t, teacher_weight, word)
                machine.launch("triton::_backward_kernel", (s_tile, t_tile), FLOAT32, s_tile.nbytes)
                grad_tile = s_tile.to(dtype)
                words = rows_of(weight, word, TILE_WORDS)
                if grad_hidden is not None:
                    add_product(h_s.shape, grad_tile, words.to(dtype))
                if grad_weight is not None:
                    add_product(words.shape, grad_tile.transpose(0, 1), h_s)
        summed_up = ((grad_hidden, student.dtype), (grad_weight, weight.dtype))
        results = [None if gradient is None else gradient.to(dtype) for gradient, dtype in summed_up]
        del grad_divergence
        return results

    node = start(machine, (student, weight), back)
    with machine.no_grad():
        s_max, t_max = zeros() - 1.0, zeros() - 1.0
        s_sum, s_x_sum, t_sum, t_weighted_gap, s_weighted_gap = [zeros() for _ in range(5)]
        jsd, kl_student = zeros(), zeros()
        s_buf, t_buf = tiles()
        s_log_z = t_log_z = h_s = h_t = None
        for token in starts(rows, TILE_TOKENS):
            h_s = rows_of(student, token, TILE_TOKENS).to(dtype)
            h_t = rows_of(teacher, token, TILE_TOKENS).to(dtype)
            for word in range(0, weight.shape[0], TILE_WORDS):
                tile = project(s_buf, h_s, weight, word), project(t_buf, h_t, teacher_weight, word)
                machine.launch("triton::_stats_kernel", tile, FLOAT32, 0)
            s_log_z = rows_of(s_max, token, TILE_TOKENS) + rows_of(s_sum, token, TILE_TOKENS).log()
            t_log_z = rows_of(t_max, token, TILE_TOKENS) + rows_of(t_sum, token, TILE_TOKENS).log()
        s_log_z = s_max + s_sum.log()
        t_log_z = t_max + t_sum.log()
        entropy = s_log_z - s_x_sum / s_sum
        divergence = s_weighted_gap / s_sum - s_log_z + t_log_z
        del s_max, t_max, s_sum, s_x_sum, t_sum, t_weighted_gap, s_weighted_gap, jsd, kl_student, s_buf, t_buf, h_s, h_t
    kept = (student, weight, teacher, teacher_weight, s_log_z, t_log_z, divergence.detach())
    return finish(node, divergence, *kept), entropy
