"""One token through an AMOR block: the gate is decided on the device, and what it shuts reads nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..amor_attention import GatedAttention
from ..amor_trigger import (
    AlwaysTrigger,
    EntropyTrigger,
    NeverTrigger,
    RouterTrigger,
    Scored,
    Trigger,
)
from ..errors import SpecError
from ..mixers.base import State
from .dial import Dialled
from .plain import Dial, Norm
from .steps import Desk, Step, take

Score = Callable[[Tensor], None]


def _entropy(desk: Desk, trigger: EntropyTrigger, head: Tensor, norm: Norm | None, score: Tensor) -> Score:
    return lambda x: desk.ops.entropy(x, head, score, norm=norm)


def _router(desk: Desk, trigger: RouterTrigger, head: Tensor, norm: Norm | None, score: Tensor) -> Score:
    router = trigger.router
    weight, bias, out = (part.detach() for part in (router.hidden.weight, router.hidden.bias, router.out.weight[0]))
    skip, skip_bias = router.skip.weight.detach()[0], router.skip.bias.detach()
    hidden = desk.buffer("router", len(weight), dtype=desk.wide)

    def run(x: Tensor) -> None:
        desk.ops.project(x, weight, hidden, norm=norm)
        desk.ops.route(hidden, x, bias, out, skip, skip_bias, score, norm=norm)

    return run


class Gates:
    """The decisions of one block: `fire (B,)` uint8 of the last token, `count (B,)` int64 of all since `reset`."""

    def __init__(self, desk: Desk) -> None:
        device = desk.position.device
        self.fire = torch.zeros(desk.batch, dtype=torch.uint8, device=device)
        self.count = torch.zeros(desk.batch, dtype=torch.int64, device=device)
        self.score = torch.zeros(desk.batch, dtype=torch.float32, device=device)

    def reset(self) -> None:
        self.count.zero_()


def gate_step(desk: Desk, trigger: Trigger, head: Tensor, norm: Norm | None, gates: Gates) -> Step:
    """Scores the features `norm(x)` and decides. A dialled trigger pays for its score and decides by the dial.

    Raises `SpecError` for a trigger without a step.
    """
    dial = None
    if isinstance(trigger, Dialled):
        dial, trigger = Dial(trigger.fires), trigger.inner
    score: Score = lambda x: None  # noqa: E731
    threshold: Tensor | None = None
    if isinstance(trigger, EntropyTrigger):
        score = _entropy(desk, trigger, head, norm, gates.score)
    elif isinstance(trigger, RouterTrigger):
        score = _router(desk, trigger, head, norm, gates.score)
    elif isinstance(trigger, (AlwaysTrigger, NeverTrigger)):
        gates.fire.fill_(int(trigger.fires))
    else:
        raise SpecError(
            f"decoding: the trigger {type(trigger).__name__} has no fused step; nearest: 'entropy', 'router', 'always'"
        )
    if isinstance(trigger, Scored):
        threshold = trigger.statistics.tau.detach().reshape(1)

    def step(x: Tensor) -> None:
        score(x)
        desk.ops.decide(
            gates.score if threshold is not None else None,
            threshold,
            gates.fire,
            gates.count,
            desk.position,
            dial=dial,
        )

    return step


def attention_step(
    desk: Desk, attention: GatedAttention, head: Tensor, norm: Norm | None, state: State, gates: Gates
) -> Step:
    """`x + g alpha * attention(norm(x))`: keys and values always, query, scores and output map where `g = 1`."""
    keys, values = take(state, "k"), take(state, "v")
    heads, width = attention.heads, attention.head_dim
    query, out = attention.query.weight.detach(), attention.out.weight.detach()
    key_value = attention.key_value.weight.detach()
    scale = attention.scale()
    scale = None if scale is None else scale.detach().to(desk.dtype)
    angles = desk.angles(width, attention.rope_base)
    kv, asked = desk.buffer("kv", 2 * heads, width), desk.buffer("query", heads, width)
    k, v = kv.chunk(2, dim=1)
    attended = desk.buffer("attended", heads * width)
    decide = gate_step(desk, attention.trigger, head, norm, gates)
    fire = gates.fire

    def step(x: Tensor) -> None:
        decide(x)
        desk.ops.project(x, key_value, kv.flatten(1), norm=norm)
        desk.ops.remember(k, v, keys, values, desk.position, angles=angles)
        desk.ops.project(x, query, asked.flatten(1), norm=norm, fire=fire)
        desk.ops.attend(asked, keys, values, attended, desk.position, angles=angles, fire=fire)
        desk.ops.project(attended, out, x, residual=True, scale=scale, fire=fire)

    return step


def head_weight(readout: nn.Linear | None, embedding: nn.Embedding) -> Tensor:
    """The head's weights `(V, D)`; raises `SpecError` for a head with a bias."""
    if readout is None:
        return embedding.weight.detach()
    if readout.bias is not None:
        raise SpecError("decoding: head.kind 'linear' does not decode; nearest: 'tokens'")
    return readout.weight.detach()
