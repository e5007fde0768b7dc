"""One allocation while a tape is made, on paper or by tracing."""

from __future__ import annotations

from tunecast.tape.op import Phase, Role


class Block:
    """`Alloc` is made of it at the end."""

    __slots__ = ("born_forward", "died_backward", "module", "nbytes", "phase", "role", "stream")

    def __init__(self, nbytes: int, module: str, phase: Phase, born_forward: bool, stream: int) -> None:
        self.nbytes, self.module, self.phase, self.stream = nbytes, module, phase, stream
        self.born_forward, self.died_backward = born_forward, False
        self.role: Role | None = None

    def is_like(self, other: Block) -> bool:
        """Sizes that are symbols are one object each; comparing them would be a question."""
        sizes = self.nbytes, other.nbytes
        if sizes[0] is not sizes[1] and not (type(sizes[0]) is type(sizes[1]) is int and sizes[0] == sizes[1]):
            return False
        mine, others = ((b.module, b.phase, b.role, b.born_forward, b.stream) for b in (self, other))
        return mine == others

    def role_by_life(self, is_head: bool) -> Role:
        """Where nobody said one: `is_head` is of its module."""
        if is_head and self.phase in (Phase.FORWARD, Phase.BACKWARD):
            return Role.LOGITS_AND_LOSS
        return Role.ACTIVATIONS if self.born_forward and self.died_backward else Role.TEMPORARIES
