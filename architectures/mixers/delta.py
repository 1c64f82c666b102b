"""DeltaNet: the delta rule, which forgets only what it overwrites.

S_t = S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T,        o_t = S_t q_t / sqrt(d)
"""

from __future__ import annotations

from torch import Tensor

from ..context import Context
from ..kernels import full
from .association import Association
from .base import State


class DeltaNet(Association):
    """The association of the delta rules, without decay and without output gate.

    Reference: Schlag, Irie & Schmidhuber 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484.
    """

    def __init__(
        self,
        d_model: int,
        *,
        head_dim: int,
        heads: int,
        expand_v: float = 1.0,
        conv: int = 4,
        negative_eigenvalues: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(
            d_model,
            head_dim=head_dim,
            heads=heads,
            expand_v=expand_v,
            conv=conv,
            negative_eigenvalues=negative_eigenvalues,
            norm_eps=norm_eps,
        )

    def mix(self, x: Tensor, state: State | None, context: Context) -> tuple[Tensor, State | None]:
        mixed, b = self.project(x).split([self.mixed, self.heads], dim=-1)
        q, k, v, conv_state = self.associate(mixed, state)
        memory = None if state is None else state["memory"]
        o, memory = self.run("delta", q, k, v, self.write_strength(b), None, memory)
        self.publish(context, o.flatten(2).to(x.dtype))
        o = self.norm(full(o)).flatten(2)
        return self.out(o.to(x.dtype)), self.next_state(state, memory, conv_state)
