"""The counts of a whole model, by formula from its spec."""

from __future__ import annotations

from typing import Literal

from ..spec import resolve
from .cost import Cost
from .models import Spec, model_cost
from .published_rule import published_flops


def cost(spec: Spec, length: int, *, firing_rate: float = 1.0, linear_fraction: float = 0.75) -> Cost:
    """Everything at once, in parts: see `Cost` for what each is.

    `length` is the context length. `firing_rate` is the fraction of tokens at which AMOR's blocks attend (1: dense, as
    trained), `linear_fraction` that of the tokens which Oryx writes with its recurrence (the paper trains at 3/4).
    Raises `SpecError` for a spec that cannot be resolved and `NoFormula` for a plug-in.
    """
    if length < 1:
        raise ValueError(f"length: {length} is below 1; nearest: 1")
    return model_cost(resolve(spec), length, firing_rate=firing_rate, linear_fraction=linear_fraction)


def parameters(spec: Spec) -> int:
    """Parameters of the model, tied weights once, buffers not at all; all that Oryx stores."""
    return round(cost(spec, 1).parameters)


def state_bytes(spec: Spec, length: int, dtype_bytes: int = 4) -> int:
    """Bytes of the decoding state of one sequence with room for `length` tokens.

    `dtype_bytes` is the size of a number in the caches: keys and values, convolution inputs and Mamba-2's state. The
    other recurrent states are float32 at least.
    """
    return cost(spec, length).state_bytes(dtype_bytes)


def forward_flops(
    spec: Spec,
    length: int,
    rule: Literal["exact", "published"] = "exact",
    *,
    firing_rate: float = 1.0,
    linear_fraction: float = 0.75,
) -> float:
    """FLOPs per token of one forward pass over `length` tokens with logits at every token; a multiply-add is two.

    `exact`: every product with weights, causal attention over the keys that are really seen, every write to and read
    from a matrix state, taken token by token, and short convolutions; norms, softmax and elementwise products are left
    out. `published`: the papers' rules (`published_rule`), with AMOR's blocks dense.
    """
    if rule == "published":
        return published_flops(resolve(spec), length, linear_fraction=linear_fraction)
    if rule != "exact":
        raise ValueError(f"rule: unknown {rule!r}; nearest: 'exact' (known: exact, published)")
    return cost(spec, length, firing_rate=firing_rate, linear_fraction=linear_fraction).flops
