"""GaLore and APOLLO on paper: moments of the gradient's projection, a matrix at a time.

Source   galore_torch 1.0 (galore_projector.py, adamw.py, adafactor.py), apollo_torch 1.0.3 (apollo.py,
         random_projector.py), with the settings of transformers 5.17 (trainer_optimizer.py): rank 128, a new
         projection every 200 steps, of which a run of a few steps sees the first.
Assumed  `optim_target_modules`, which transformers wants and a job does not say: every linear layer but the head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.optimizers.blockwise import SMALLEST_8BIT, Blockwise
from tunecast.tape.build.optimizers.one_by_one import CLIP_THRESHOLD, moved, product, rms
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

RANK = 128
SVD_GUESSED = "cuSOLVER's workspace for GaLore's singular vectors is not known; taken as large as the matrix"


class LowRank(Optimizer):
    """AdamW without bias, the parameters that are not projected first."""

    def __init__(self, parameters: Sequence[Tensor], linear: Collection[Tensor]) -> None:
        super().__init__(parameters)
        chosen = {id(weight) for weight in linear}
        self.chosen = [p for p in parameters if id(p) in chosen]
        self.others = [p for p in parameters if id(p) not in chosen]
        self.projections: dict[int, Tensor] = {}

    def step(self) -> None:
        with self.machine.no_grad():
            self.take()

    def take(self) -> None:
        raise NotImplementedError

    def turns(self) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Each parameter, its gradient, and whether that is projected."""
        for p in (*self.others, *self.chosen):
            if p.grad is not None:
                self.machine.module = self.module_of(p)
                yield p, p.grad, any(p is one for one in self.chosen)

    def first_state(self, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        if id(parameter) not in self.state:
            like = (grad.shape, grad.dtype)
            self.state[id(parameter)] = self.made(parameter, like, like)
            self.machine.module = self.module_of(parameter)
        return self.state[id(parameter)]

    def project(self, parameter: Tensor, full_rank_grad: Tensor) -> Tensor:
        """From the side that is longer: a tall matrix keeps its rows."""
        tall = full_rank_grad.shape[0] >= full_rank_grad.shape[1]
        if id(parameter) not in self.projections:
            self.projections[id(parameter)] = self.orthogonal(full_rank_grad, tall).as_role(Role.OPTIMIZER)
        kept = self.projections[id(parameter)].transpose(0, 1)
        return F.mm(full_rank_grad, kept) if tall else F.mm(kept, full_rank_grad)

    def orthogonal(self, weights: Tensor, tall: bool) -> Tensor:
        raise NotImplementedError


class GaLore(LowRank):
    def take(self) -> None:
        machine = self.machine
        denom = norm_grad = None
        for p, grad, has_rank in self.turns():
            if has_rank:
                grad = self.project(p, grad)
            exp_avg, exp_avg_sq = self.first_state(p, grad)
            machine.launch("mul_", (exp_avg, grad), grad.dtype, grad.nbytes)
            machine.launch("addcmul_", (exp_avg_sq, grad), grad.dtype, grad.nbytes)
            denom = exp_avg_sq.sqrt()
            norm_grad = exp_avg / denom
            if has_rank:
                norm_grad = self.project_back(p, norm_grad)
            machine.launch("add_", (p, norm_grad), p.dtype, p.nbytes)

    def project_back(self, parameter: Tensor, low_rank_grad: Tensor) -> Tensor:
        kept = self.projections[id(parameter)]
        if low_rank_grad.shape[0] >= low_rank_grad.shape[1]:
            full_rank_grad = F.mm(low_rank_grad, kept)
        else:
            full_rank_grad = F.mm(kept, low_rank_grad)
        return full_rank_grad * 0.25

    def orthogonal(self, weights: Tensor, tall: bool) -> Tensor:
        """`get_orthogonal_matrix`: in fp32; what is returned of an fp32 matrix is a view that keeps it all."""
        machine = weights.machine
        machine.guesses[SVD_GUESSED] = None
        matrix = weights.float()
        rows, columns = matrix.shape
        inner = min(rows, columns)
        outs = (((rows, inner), FLOAT32), ((inner,), FLOAT32), ((inner, columns), FLOAT32))
        U, s, Vh = machine.run_many("_linalg_svd", (matrix,), outs, args=(matrix,))
        rank = min(RANK, inner)
        U = U.alias((rows, rank), (1, rows))  # by columns, as cuSOLVER writes both
        Vh = Vh.alias((rank, columns), (columns, 1))
        diagonal = machine.run("diag_embed", (s,), (rank, rank), FLOAT32)
        if tall:
            A, B = F.mm(U, diagonal), Vh
        else:
            A, B = U, F.mm(diagonal, Vh)
        del diagonal
        if tall:
            return B.to(weights.dtype)
        return A.to(weights.dtype)


class GaLoreAdafactor(GaLore):
    """transformers' Adafactor (`one_by_one.py` here) on the projection of the fp32 gradient."""

    def take(self) -> None:
        machine = self.machine
        update: Any = None
        for p, grad, has_rank in self.turns():
            grad = grad.float()
            if has_rank:
                grad = self.project(p, grad)
            factored = grad.dim() >= 2
            if id(p) not in self.state:
                rows, columns = grad.shape[:-1], grad.shape[:-2] + grad.shape[-1:]
                self.state[id(p)] = moved(machine, rows, columns) if factored else self.made(p, (p.shape, FLOAT32))
                machine.module = self.module_of(p)
            state = self.state[id(p)]
            p_data_fp32 = p
            p_data_fp32 = p_data_fp32.float()
            state[2 if factored else 1 :] = [rms(p_data_fp32).as_role(Role.OPTIMIZER)]
            update = grad.pow(2) + 1e-30
            if factored:
                for sums, dim in zip(state, (-1, -2), strict=False):
                    mean = update.mean(dim)
                    machine.launch("add_", (sums, mean), FLOAT32, sums.nbytes)
                    del mean
                update = product(state[0], state[1])
            else:
                update = state[0].rsqrt()
            machine.launch("mul_", (update, grad), FLOAT32, update.nbytes)
            limit = rms(update) / CLIP_THRESHOLD
            machine.launch("div_", (update, limit), FLOAT32, update.nbytes)
            del limit
            if has_rank:
                update = self.project_back(p, update)
            minus = -update
            machine.launch("add_", (p_data_fp32, minus), FLOAT32, update.nbytes)
            del minus
            if p.dtype != FLOAT32:
                machine.launch("copy_", (p, p_data_fp32), p.dtype, p.nbytes)


class GaLoreAdamW8bit(GaLore):
    """bitsandbytes' 8-bit Adam on the projection (adamw8bit.py). For its turn a weight is cloned and becomes as small
    as its projected gradient, which takes the gradient's place. galore_torch gives bitsandbytes arguments of an older
    release by position: 100 percentiles are a largest norm of 100 to release 0.50, so small tensors' norms are taken.
    """

    package = "bitsandbytes"

    def __init__(self, parameters: Sequence[Tensor], linear: Collection[Tensor]) -> None:
        super().__init__(parameters, linear)
        self.moments = Blockwise(parameters)

    @property
    def tables(self) -> Sequence[Tensor]:  # type: ignore[override]
        return self.moments.tables

    def take(self) -> None:
        machine = self.machine
        for p, grad, has_rank in self.turns():
            data = p
            if has_rank:
                grad = self.project(p, grad)
                saved_data = p.clone()
                data = grad.clone()
                p.storage = saved_data.storage  # the weights are elsewhere from now on
                p.block.role = Role.WEIGHTS
                p.grad = grad
            small = data.numel() < SMALLEST_8BIT
            if id(p) not in self.state:
                kept = self.moments.small_state(data) if small else self.moments.large_state(data)
                self.state[id(p)] = [*kept, self.moments.zeros((1,), FLOAT32)]
                del kept
            if small:
                machine.run("linalg_vector_norm", (data,), (), FLOAT32, args=(data.float(), 2.0))
            machine.launch("optimizer_update", (data,), data.dtype, data.nbytes)
            if has_rank:
                update = self.project_back(p, data)
                machine.launch("add_", (p, update), p.dtype, p.nbytes)
                del update
            del data


class Apollo(LowRank):
    """The moments of a random projection say by how much each channel of the gradient is scaled."""

    def __init__(self, parameters: Sequence[Tensor], linear: Collection[Tensor]) -> None:
        super().__init__(parameters, linear)
        self.norms: dict[int, Tensor] = {}

    def take(self) -> None:
        machine = self.machine
        denom = norm_grad = grad_scaling_factor = scaled_grad = scaled_grad_norm = limiter = None
        for p, grad, has_rank in self.turns():
            full_rank_grad = grad
            if has_rank:
                norm_dim = 0 if grad.shape[0] < grad.shape[1] else 1
                grad = self.project(p, grad)
            exp_avg, exp_avg_sq = self.first_state(p, grad)
            machine.launch("mul_", (exp_avg, grad), grad.dtype, grad.nbytes)
            machine.launch("addcmul_", (exp_avg_sq, grad), grad.dtype, grad.nbytes)
            denom = exp_avg_sq.sqrt()
            norm_grad = exp_avg / denom
            if has_rank:
                grad_scaling_factor = norm(norm_grad, norm_dim) / (norm(grad, norm_dim) + 1e-8)
                if norm_dim == 1:
                    grad_scaling_factor = grad_scaling_factor.unsqueeze(1)
                scaled_grad = full_rank_grad * grad_scaling_factor
                if id(p) in self.norms:
                    scaled_grad_norm = norm(scaled_grad)
                    limiter = limit_norm(scaled_grad_norm / (self.norms[id(p)] + 1e-8))
                    scaled_grad = scaled_grad / limiter
                    self.norms[id(p)] = scaled_grad_norm / limiter
                else:
                    self.norms[id(p)] = norm(scaled_grad)
                norm_grad = scaled_grad
                machine.launch("mul_", (norm_grad,), norm_grad.dtype, norm_grad.nbytes)
            machine.launch("add_", (p, norm_grad), p.dtype, p.nbytes)

    def orthogonal(self, weights: Tensor, tall: bool) -> Tensor:
        machine = weights.machine
        matrix = weights.float()
        shape = (RANK, matrix.shape[1]) if tall else (matrix.shape[0], RANK)
        proj = machine.run("randn", (), shape, FLOAT32) / RANK**0.5
        return proj.to(weights.dtype)


def norm(x: Tensor, dim: int | None = None) -> Tensor:
    shape = () if dim is None else tuple(size for place, size in enumerate(x.shape) if place != dim)
    dims = None if dim is None else (dim,)
    return x.machine.run("linalg_vector_norm", (x,), shape, x.dtype, args=(x, 2.0, dims))


def limit_norm(limiter: Tensor) -> Tensor:
    """max(limiter, 1.01) / 1.01: Python compares, which asks the card."""
    compared = limiter.gt(1.01)
    del compared
    return limiter / 1.01
