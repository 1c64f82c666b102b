"""The models that are measured: the papers' specs with random weights, and their gates set as asked.

AMOR's attention output maps start at zero; here they are drawn like every other map, so that nothing multiplies zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from architectures import build, published_spec
from architectures.amor import Amor
from architectures.amor_trigger import Scored, Trigger
from architectures.decoding import Dialled, even_pattern
from architectures.errors import nearest_name
from architectures.published import AMOR_SCALES, ORYX_SCALES, models

ORYX_SCALE = {"180M": "130M", "440M": "380M", "1.5B": "1.4B"}
"""Oryx's scale of the same width and depth as AMOR's."""
MODES = ("attention", "linear")


class Case(NamedTuple):
    """One row of the tables: a published model at its scale, Oryx in one mode; `group` is AMOR's scale."""

    name: str
    scale: str
    group: str
    mode: str = "attention"

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.name} {self.mode}" if self.scale in ORYX_SCALES else self.name

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved spec, with AMOR's output maps drawn."""
        spec = published_spec(self.name, self.scale)
        return {**spec, "output_init": "normal"} if spec["kind"] == "amor" else spec


def cases(group: str) -> list[Case]:
    """The ten models of AMOR's tables at one scale, and Oryx's two in both modes. ValueError for another scale."""
    if group not in AMOR_SCALES:
        near = nearest_name(group, AMOR_SCALES)
        raise ValueError(f"scales: {group!r} is not one of {', '.join(AMOR_SCALES)}; nearest: {near!r}")
    rows = [Case(name, group, group) for name in _paired(models(group))]
    scale = ORYX_SCALE[group]
    return rows + [Case(name, scale, group, mode) for name in models(scale) for mode in MODES]


def _paired(names: list[str]) -> list[str]:
    """The paper's order: each AMOR model, then the same with the router."""
    routed = {name for name in names if "+" in name}
    ordered: list[str] = []
    for name in names:
        if name not in routed:
            ordered += [name, *(other for other in names if other in routed and other.split(" + ")[0] == name)]
    return ordered


def make(spec: Mapping[str, Any], device: torch.device, dtype: torch.dtype, *, kernels: Any = "auto") -> nn.Module:
    """The model with weights drawn from seed 0, for inference; AMOR gathers the positions that fire."""
    torch.manual_seed(0)
    with torch.device(device):
        model = build(spec, kernels=kernels)
    model = model.to(dtype).eval().requires_grad_(False)
    if isinstance(model, Amor):
        model.mode = "sparse"
    return model


def control(mode: str, batch: int, length: int) -> dict[str, Tensor]:
    """Oryx's control for a whole prefill in one mode, on the host, where reading it costs no wait."""
    return {"mode": torch.ones(batch, length, dtype=torch.int64)} if mode == "linear" else {}


@torch.no_grad()
def settle(model: nn.Module, tokens: Tensor) -> None:
    """Sets each gate's averages to the median and deviation of its score on `tokens (B, T)`, as training would.

    Block by block, since a block's features depend on whether the ones before it fire.
    """
    if not isinstance(model, Amor):
        return
    for attention in model.attentions:
        if isinstance(attention.trigger, Scored):
            score = model(tokens, positions=_last(tokens)).extras["fields"][f"gate.{attention.number}.score"]
            attention.trigger.statistics.fix(score.median(), score.std())


def _last(tokens: Tensor) -> Tensor:
    """The flat index of the last position, so that logits are formed nowhere else."""
    return torch.tensor([tokens.numel() - 1], device=tokens.device)


def dialled(
    model: nn.Module, prompt: int, room: int, batch: int, prefill_rate: float, decode_rate: float
) -> list[Trigger]:
    """Triggers that fire at one rate in the first `prompt` tokens and at another after them, scores computed."""
    attentions = cast(Amor, model).attentions
    made: list[Trigger] = []
    for number, attention in enumerate(attentions):
        patterns = [
            even_pattern(rate, length, batch, number, len(attentions))
            for rate, length in ((prefill_rate, prompt), (decode_rate, room - prompt))
        ]
        fires = torch.cat(patterns, dim=1).to(next(model.parameters()).device)
        made.append(Dialled(attention.trigger, fires))
    return made
