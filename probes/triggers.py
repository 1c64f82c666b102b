"""Other triggers for a trained AMOR model: what its attention is worth where another rule decides when it fires.

A variant of `evaluate.variants` may hold `trigger` beside its control tensors: the name or the mapping of a trigger of
`architectures.amor_spec.TRIGGERS`, with one more key for those that have a threshold or a rate:

    {"trigger": {"kind": "random", "firing_rate": "native"}}

`firing_rate` sets the threshold so that each block fires at this share of the positions of the validation split, block
after block with the earlier ones on; `native` is the share at which the model's own gate fires there. Without it, the
model's own statistics are used where the score is the same quantity (an entropy or a router's estimate of it), and
elsewhere the median and standard deviation of the score on the validation split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from architectures import SpecError
from architectures.amor_spec import NEEDS_HEAD, TRIGGERS, resolve_trigger

ESTIMATES = ("entropy", "router", "random_router")
"""Triggers whose scores are normalised entropies or estimates of them, so that one threshold serves them all."""

Passes = Callable[[], Iterator[Mapping[str, Any]]]
"""Runs the model over the calibration sequences; the extras of each batch."""


def takes_triggers(model: nn.Module) -> bool:
    """Whether the model has gates that can be replaced."""
    return hasattr(model, "triggered")


def check_trigger(setting: str | Mapping[str, Any], d_model: int) -> dict[str, Any]:
    """The resolved trigger of a variant's entry `trigger`, without its `firing_rate`.

    Raises `SpecError` for a trigger or a dial that there is not, or a `firing_rate` where nothing could follow it.
    """
    given = {"kind": setting} if isinstance(setting, str) else setting
    rate = given.get("firing_rate") if isinstance(given, Mapping) else None
    if isinstance(given, Mapping):
        given = {key: value for key, value in given.items() if key != "firing_rate"}
    if isinstance(rate, bool) or not (
        rate is None or rate == "native" or (isinstance(rate, float | int) and 0 <= rate <= 1)
    ):
        raise SpecError(f"trigger.firing_rate: {rate!r} is neither a rate in [0, 1] nor 'native'; nearest: 'native'")
    params = resolve_trigger(setting if isinstance(setting, str) else given, d_model)
    adjustable = params["kind"] == "random" or "kappa" in TRIGGERS[params["kind"]]
    if rate is not None and (not adjustable or params.get("compare") == "positive"):
        raise SpecError(f"trigger.firing_rate: {params['kind']!r} has no threshold that could be moved; nearest: null")
    return params


def needs_tokens(params: Mapping[str, Any]) -> bool:
    """Whether a resolved trigger reads a distribution over next tokens, which not every head has."""
    return params["kind"] in NEEDS_HEAD


@contextmanager
def lent(model: Any, setting: str | Mapping[str, Any], passes: Passes) -> Iterator[None]:
    """Within this block `model` fires as `setting` says; its own triggers come back afterwards.

    `passes` is called, perhaps more than once, to calibrate. Raises `SpecError` for a trigger that there is not, or a
    `firing_rate` where nothing could follow it.
    """
    params = check_trigger(setting, model.spec["d_model"])
    rate = setting.get("firing_rate") if isinstance(setting, Mapping) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        triggers = model.make_triggers(params)
    kind, own = params["kind"], model.spec["trigger"]["kind"]
    rates: list[Any] = [rate] * len(triggers)
    if rate == "native":
        rates = _native_rates(passes, len(triggers))
    for trigger, attention in zip(triggers, model.attentions, strict=True):
        _carry_over(trigger, attention.trigger, same=kind == own, estimate=kind in ESTIMATES and own in ESTIMATES)
    with model.triggered(triggers):
        if rate is not None or not (kind == own or (kind in ESTIMATES and own in ESTIMATES)):
            _calibrate(triggers, rates, passes)
        yield


def _carry_over(trigger: Any, own: Any, *, same: bool, estimate: bool) -> None:
    """Takes over what the model has learned for a trigger of the same kind, and the statistics of an entropy."""
    if same:
        learned = {name: value for name, value in own.state_dict().items() if name not in ("rate", "steps")}
        trigger.load_state_dict(learned, strict=False)
    elif estimate:
        trigger.statistics.fix(own.statistics.mu, own.statistics.sigma)


def _native_rates(passes: Passes, blocks: int) -> list[float]:
    fires = [extras["fields"] for extras in passes()]
    return [float(torch.cat([f[f"gate.{k}.fire"].flatten() for f in fires]).float().mean()) for k in range(blocks)]


def _calibrate(triggers: list[Any], rates: list[float | None], passes: Passes) -> None:
    for number, (trigger, rate) in enumerate(zip(triggers, rates, strict=True)):
        if hasattr(trigger, "rate"):
            if rate is not None:
                trigger.rate.fill_(rate)
        elif getattr(trigger, "statistics", None) is not None:
            scores = torch.cat([extras["fields"][f"gate.{number}.score"].flatten() for extras in passes()])
            if rate is None:
                trigger.statistics.fix(scores.median(), scores.std())
            else:
                trigger.statistics.fix(threshold(scores, rate))


def threshold(scores: Tensor, rate: float) -> Tensor:
    """The value that a share `rate` of `scores (n,)` exceeds, or as near to it as ties allow from below."""
    kept = round((1 - rate) * len(scores))
    ordered = scores.sort().values
    return ordered[0] - 1 if kept == 0 else ordered[kept - 1]
