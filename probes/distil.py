"""Distillation of AMOR's native gate into a router that needs no head: `fastslow run ... --distil`.

The trained model and its thresholds stay as they are. Block after block, with the routers of the earlier blocks on, a
router (`architectures.amor_router`) learns the block's normalised entropy y from the features that the gate sees:

1. its linear part by ridge regression, its hidden part starting at zero;
2. all of it by Adam on SmoothL1 of (prediction - y) / sigma, each position weighted 1 + 4 exp(-|y - tau| / sigma);
3. its bias, so that on sequences not fitted on it fires as often as the native gate does there.

Fitting, calibration and evaluation have sequences of their own. The ridge start, the loss's name, 30 epochs, the
learning rate, the batch and the held-out bias are the paper's; the form of the weight, the unit sigma and the ridge's
strength are not published and are ours.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, appendix G.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional as F

from architectures import SpecError, accounting, build, resolve
from architectures.amor_router import Router
from probes.controls import make_control
from probes.files import whole_folder
from probes.results import write_json
from probes.scoring import paired
from probes.splits import BLOCK, split_generator
from probes.task import Batch
from probes.trial import Labels, Result, Runner, Runtime
from probes.triggers import threshold

RIDGE = 1e-3
"""Of the linear start: times the features' mean square."""
BOUNDARY = 4.0
"""How much more a position at the threshold weighs than one far from it."""


@dataclass(frozen=True)
class Settings:
    """How a router is fitted; the defaults are the paper's, positions apart (it used 1.57M and 0.295M a block)."""

    hidden: int | None = None
    """Units; None: 512, or the model's width where that is less."""
    epochs: int = 30
    lr: float = 1e-3
    batch_size: int = 16384
    fit_positions: int = 131072
    calibration_positions: int = 32768


@dataclass(frozen=True)
class Report:
    """Native gate and router on the trial's test sequences. Lists have an entry for each block.

    `excess_change` is the router's excess over Bayes minus the native gate's, nats, with its paired standard error.
    `agreement` is the share of positions at which the router, reading the same features, decides as the native gate.
    FLOPs are per token of a forward pass at the task's length, by the exact rule, at the firing rates measured.
    """

    excess: float
    excess_routed: float
    excess_change: float
    excess_change_se: float
    firing_rate: list[float]
    firing_rate_routed: list[float]
    agreement: list[float]
    forward_flops: float
    forward_flops_routed: float
    parameters_added: int


class Listening(nn.Module):
    """Fires as `decides` does, and keeps what it sees: features, and the native gate's score and decision."""

    def __init__(self, decides: nn.Module, native: nn.Module) -> None:
        super().__init__()
        self.decides, self.native = decides, native
        self.keep_features = False
        self.features: list[Tensor] = []
        self.score: list[Tensor] = []
        self.fire: list[tuple[Tensor, Tensor]] = []

    def forward(self, features: Tensor, context: Any, start: int) -> Any:
        gate = self.decides(features, context, start)
        native = gate if self.native is self.decides else self.native(features, context, start)
        if self.keep_features:
            self.features.append(features.detach().float().flatten(0, 1))
        self.score.append(native.score.flatten())
        self.fire.append((gate.fire.flatten(), native.fire.flatten()))
        return gate


def distil(result: Result, out: Path, settings: Settings | None = None, device: str = "cpu") -> tuple[Path, Report]:
    """Fits routers to a finished trial, scores them, and writes the routed model to `out/distilled/NAME`.

    The folder has `architecture.json` (the spec), `weights.safetensors` and `report.json`. SpecError where the trial's
    model has no native gate.
    """
    settings, spec = settings or Settings(), result.trial.architecture
    require_native_gate(spec)
    native: Any = result.model(device)
    routed_spec = _routed(spec, settings)
    routed: Any = build(routed_spec).to(device).eval()
    routed.load_state_dict(native.state_dict(), strict=False)
    fit = _sequences(result, "fit", settings.fit_positions, device)
    held_out = _sequences(result, "calibration", settings.calibration_positions, device)
    for number in range(len(routed.attentions)):
        _fit_block(routed, native, number, result, fit, held_out, settings)
    report = _compare(result, native, routed, routed_spec, out, device)
    folder = out / "distilled" / result.folder.name
    with whole_folder(folder) as temporary:
        write_json(temporary / "architecture.json", routed_spec)
        write_json(temporary / "report.json", {"trial": result.trial.identity(), **asdict(settings), **asdict(report)})
        save_model(routed, str(temporary / "weights.safetensors"))
    return folder, report


def require_native_gate(spec: Mapping[str, Any]) -> None:
    """SpecError unless the resolved spec is an AMOR model's with the entropy trigger."""
    found = spec.get("trigger", spec["kind"])
    if spec["kind"] != "amor" or found["kind"] != "entropy":
        raise SpecError(f"distil: needs an AMOR model with the entropy trigger, not {found!r}; nearest: 'amor_gdn'")


def _routed(spec: dict[str, Any], settings: Settings) -> dict[str, Any]:
    given = {} if settings.hidden is None else {"hidden": settings.hidden}
    return resolve({**spec, "trigger": {**spec["trigger"], "kind": "router", **given}})


def _sequences(result: Result, part: str, positions: int, device: str) -> list[Batch]:
    task = result.task()
    generator = split_generator(result.trial.seeds.data_seed, "distil", part)
    count = -(-positions // task.length)
    size = min(BLOCK, count)
    return [task.sample(generator, size).to(device) for _ in range(-(-count // size))]


@contextmanager
def _listening(model: Any, native: Any) -> Iterator[list[Listening]]:
    """Listeners around the triggers of `model`, with those of `native` beside them."""
    pairs = zip(model.attentions, native.attentions, strict=True)
    listeners = [Listening(attention.trigger, other.trigger) for attention, other in pairs]
    with model.triggered(listeners):
        yield listeners


def _fit_block(
    routed: Any, native: Any, number: int, result: Result, fit: list[Batch], held_out: list[Batch], settings: Settings
) -> None:
    """Fits and calibrates the router of one block; the later blocks play no part in what it sees."""
    trigger = routed.attentions[number].trigger
    seen = []
    for part, batches in (("fit", fit), ("calibration", held_out)):
        with _listening(routed, native) as listeners:
            listeners[number].keep_features = True
            _run(routed, result, batches, part)
        heard = listeners[number]
        seen.append((torch.cat(heard.features), torch.cat(heard.score), torch.cat([pair[1] for pair in heard.fire])))
    (features, score, _), (held_features, _, held_fire) = seen
    tau, sigma = trigger.statistics.tau, trigger.statistics.sigma.clamp(min=1e-6)
    fit_router(trigger.router, features, score, tau, sigma, settings, result.trial.seeds.model_seed + number)
    with torch.no_grad():
        held_score = trigger.router(held_features)
        trigger.router.skip.bias += tau - threshold(held_score, float(held_fire.float().mean()))


def fit_router(
    router: Router, features: Tensor, score: Tensor, tau: Tensor, sigma: Tensor, settings: Settings, seed: int
) -> None:
    """Steps 1 and 2 of the module on `features (n, D)` and the native gate's `score (n,)`."""
    mean, target = features.mean(0), score.mean()
    x, y = features - mean, score - target
    gram = x.T @ x / len(x)
    strength = (RIDGE * gram.diagonal().mean()).clamp(min=1e-12)
    gram += strength * torch.eye(len(gram), device=gram.device)
    slope = torch.linalg.solve(gram, x.T @ y / len(x))
    with torch.no_grad():
        router.skip.weight.copy_(slope[None])
        router.skip.bias.copy_((target - mean @ slope)[None])
        router.out.weight.zero_()
    weight = 1 + BOUNDARY * torch.exp(-(score - tau).abs() / sigma)
    optimizer = torch.optim.Adam(router.parameters(), lr=settings.lr)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        order = torch.randperm(len(score), generator=generator).to(score.device)
        for rows in order.split(settings.batch_size):
            error = (router(features[rows]) - score[rows]) / sigma
            loss = (weight[rows] * F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _run(model: Any, result: Result, batches: list[Batch], part: str) -> None:
    task, control = result.task(), result.trial.evaluate.control
    for batch in batches:
        generator = split_generator(result.trial.seeds.data_seed, "distil", f"control {part}", batch.tokens.device)
        with torch.no_grad():
            model(batch.tokens, positions=batch.scored, control=make_control(control, batch, task, generator, model))


def _compare(result: Result, native: Any, routed: Any, routed_spec: dict[str, Any], out: Path, device: str) -> Report:
    trial, runner = result.trial, Runner(result.trial, Labels("", ""), Runtime(device), out, None)
    evaluation = runner.evaluation_set("test", trial.evaluate.test_sequences)
    metrics: tuple[dict[str, float], dict[str, float]] = ({}, {})
    own = runner.score(native, evaluation, trial.evaluate.control, metrics[0], references=False)["model"]
    with _listening(routed, native) as listeners:
        other = runner.score(routed, evaluation, trial.evaluate.control, metrics[1], references=False)["model"]
    same = [torch.cat([one == two for one, two in heard.fire]).float().mean() for heard in listeners]
    change = paired(other, own)
    rates = [[values[f"gate.{number}.rate"] for number in range(len(same))] for values in metrics]
    length = result.task().length
    specs = (trial.architecture, routed_spec)
    flops = [
        accounting.forward_flops(spec, length, firing_rate=sum(rate) / len(rate))
        for spec, rate in zip(specs, rates, strict=True)
    ]
    added = accounting.parameters(routed_spec) - accounting.parameters(trial.architecture)
    return Report(
        own.excess().mean,
        other.excess().mean,
        change.mean,
        change.se,
        rates[0],
        rates[1],
        [float(value) for value in same],
        flops[0],
        flops[1],
        added,
    )
