"""`check`: whether a model keeps the contract, item by item.

What is tested is what a score assumes: that no logit depends on a later token, that gradients are finite at any length,
that decoding gives the logits of the full pass, that the state grows as claimed, and that seeds and saved weights fix
the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .catalogue import MIXERS
from .construct import build
from .errors import SpecError
from .kernels import Kernels
from .mixers.base import state_bytes
from .spec import resolve

Status = Literal["pass", "fail", "skip"]
LENGTHS = (1, 2, 63, 65, 100)
NOISE = 0.05
"""Standard deviation of what is added to the parameters before causality, gradients and decoding are tested."""


class CheckResult(NamedTuple):
    """One item: its name, how it went, and the measured number or the reason."""

    name: str
    status: Status
    detail: str


class _Failed(Exception):
    pass


class _Skipped(Exception):
    pass


class _Subject(NamedTuple):
    spec: dict[str, Any]
    kernels: Kernels
    device: torch.device
    outputs: int
    seed: int

    def model(self, seed: int | None = None) -> nn.Module:
        """The model; an Oryx model under a mode that changes after 3, 8, 9 and 16 tokens, over and over."""
        torch.manual_seed(self.seed if seed is None else seed)
        model = build(self.spec, kernels=self.kernels)
        if self.spec["kind"] == "oryx":
            from .oryx import Scheduled

            changes = torch.tensor([0, 1, 0, 1]).repeat_interleave(torch.tensor([3, 5, 1, 7]))
            model = Scheduled(model, changes)  # type: ignore[arg-type]
        return model.to(self.device).eval()

    def moved_model(self) -> nn.Module:
        """The model with noise on every parameter, so that what starts at zero hides nothing."""
        model = self.model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(NOISE * torch.randn_like(parameter))
        return model

    def tokens(self, length: int, batch: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.spec["vocab_size"], (batch, length), generator=generator).to(self.device)


def check(
    spec: Mapping[str, Any],
    *,
    kernels: Kernels = "auto",
    device: str | torch.device = "cpu",
    length: int = 100,
    seed: int = 0,
) -> list[CheckResult]:
    """Builds the model of a spec and runs every item on random tokens, `length` at most where an item takes one length.

    torch's global generator is left as it was. Raises `SpecError` if the spec cannot be built at all; a model that
    fails an item is a result.
    """
    resolved = resolve(spec)
    head = resolved.get("head") or {}
    outputs = head.get("size") or resolved["vocab_size"]
    subject = _Subject(resolved, kernels, torch.device(device), outputs, seed)
    devices = [subject.device] if subject.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        subject.model()
        return [_run(name, item, subject, max(4, length)) for name, item in ITEMS.items()]


def _run(name: str, item: Callable[[_Subject, int], str], subject: _Subject, length: int) -> CheckResult:
    try:
        return CheckResult(name, "pass", item(subject, length))
    except _Skipped as reason:
        return CheckResult(name, "skip", str(reason))
    except _Failed as reason:
        return CheckResult(name, "fail", str(reason))
    except Exception as error:
        return CheckResult(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _logits(model: nn.Module, tokens: Tensor, **options: Any) -> Tensor:
    output = model(tokens, **options)
    return output.logits if hasattr(output, "logits") else output


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _Failed(message)


def _shapes(subject: _Subject, length: int) -> str:
    model = subject.model()
    for n in LENGTHS:
        found = tuple(_logits(model, subject.tokens(n)).shape)
        wanted = (2, n, subject.outputs)
        _require(found == wanted, f"logits are {found} for tokens (2, {n}), not {wanted}")
    tokens = subject.tokens(length)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[0, 1::3] = True
    mask[1, -1] = True
    chosen, whole = _logits(model, tokens, positions=mask), _logits(model, tokens)[mask]
    _require(chosen.shape == whole.shape, f"logits at {len(whole)} positions are {tuple(chosen.shape)}")
    error = _distance(chosen, whole)
    _require(error < 1e-5, f"logits at positions differ from those of all by {error:.1e}")
    return f"(2, T, {subject.outputs}) at T = {', '.join(map(str, LENGTHS))}; at positions to {error:.0e}"


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference over 1 plus the largest size."""
    return ((a - b).abs().max() / (1 + b.abs().max())).item()


@torch.no_grad()
def _causality(subject: _Subject, length: int) -> str:
    model, tokens = subject.moved_model(), subject.tokens(length)
    before, worst = _logits(model, tokens), 0.0
    for position in sorted({1, length // 3, length // 2, length - 1}):
        changed = tokens.clone()
        changed[:, position:] = (changed[:, position:] + 1) % subject.spec["vocab_size"]
        after = _logits(model, changed)
        earlier = _distance(after[:, :position], before[:, :position])
        _require(earlier <= 1e-5, f"tokens from {position} on move earlier logits by {earlier:.1e}")
        _require(_distance(after[:, position:], before[:, position:]) > 0, f"tokens from {position} on move no logit")
        worst = max(worst, earlier)
    return f"earlier logits move by {worst:.0e}"


def _gradients(subject: _Subject, length: int) -> str:
    model = subject.moved_model().train()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    reached: set[str] = set()
    for n in LENGTHS:
        model.zero_grad(set_to_none=True)
        logits = _logits(model, subject.tokens(n))
        _require(bool(logits.isfinite().all()), f"logits are not finite at T = {n}")
        logits.square().mean().backward()
        bad = [name for name, p in named.items() if p.grad is not None and not p.grad.isfinite().all()]
        _require(not bad, f"gradient of {', '.join(bad[:3])} is not finite at T = {n}")
        reached |= {name for name, p in named.items() if p.grad is not None}
    _require(bool(reached), "no gradient reaches any parameter")
    unused = [name for name in named if name not in reached]
    note = f"; none reaches {', '.join(unused[:3])}" if unused else ""
    return f"finite for {len(reached)} tensors at T = {', '.join(map(str, LENGTHS))}{note}"


def _splits(length: int) -> Iterator[list[int]]:
    third = length // 3
    yield [length]
    yield [1] * length
    yield [third, *[1] * (length - 2 * third), third]
    yield [1, length - 2, 1]


def _start(subject: _Subject, model: nn.Module, batch: int, length: int) -> Any:
    if not all(hasattr(model, name) for name in ("init_state", "prefill", "step")):
        raise _Skipped("cannot be decoded: no init_state, prefill and step")
    try:
        return model.init_state(batch, length)  # type: ignore[operator]
    except NotImplementedError as error:
        raise _Skipped(f"cannot be decoded: {error}") from None


@torch.no_grad()
def _decoding(subject: _Subject, length: int) -> str:
    model: Any = subject.moved_model()
    tokens = subject.tokens(length)
    _start(subject, model, 2, length)
    whole, worst = _logits(model, tokens), 0.0
    for split in _splits(length):
        state, at, parts = model.init_state(2, length), 0, []
        for size in split:
            piece = tokens[:, at : at + size]
            if size == 1:
                logits, state = model.step(piece[:, 0], state)
                logits = logits[:, None]
            else:
                logits, state = model.prefill(piece, state, logits="all")
            parts.append(logits)
            at += size
        error = _distance(torch.cat(parts, dim=1), whole)
        _require(error < 1e-5, f"pieces of {split[:4]}... tokens differ from the full pass by {error:.1e}")
        worst = max(worst, error)
    return f"any split of {length} tokens gives the full pass to {worst:.0e}"


def claimed_growth(spec: Mapping[str, Any]) -> str | None:
    """`none`, `constant`, `window` or `linear`: the fastest growth among a stack's layers; None for other kinds."""
    if spec["kind"] != "stack":
        return None
    order = ("none", "constant", "window", "linear")
    found = "none"
    waiting, seen = list(dict.fromkeys(spec["layers"])), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        params = spec["mixers"][name]
        entry = MIXERS.get(params["kind"])
        if entry is None:
            return None
        found = max(found, entry.state, key=order.index)
        if entry.reads is None:
            parts = [field for field, schema in entry.fields.items() if schema.kind == "mixer"]
            if params["kind"] == "parallel" and params["gate"] == "block":
                parts = [params["block_choice"]]
            waiting += [params[part] for part in parts]
    return found


def _growth(subject: _Subject, length: int) -> str:
    model = subject.model()
    _start(subject, model, 1, 1)
    sizes = [state_bytes(_start(subject, model, 1, n)) for n in (1024, 2048, 4096)]
    steps = [b - a for a, b in itertools.pairwise(sizes)]
    text = f"{sizes[0]:,} bytes at 1,024 tokens, {sizes[-1]:,} at 4,096"
    linear = steps[0] > 0 and steps[1] == 2 * steps[0]
    _require(
        linear or not any(steps), f"state grows by {steps[0]:,} bytes, then by {steps[1]:,} for twice as many tokens"
    )
    claim = claimed_growth(subject.spec)
    if claim is not None:
        grows = claim == "linear" or (claim == "window" and any(steps))
        _require(grows == linear, f"claimed {claim}, but {text}")
    return text


def _determinism(subject: _Subject, length: int) -> str:
    tokens, model = subject.tokens(length), subject.model()
    one, again, two = _logits(model, tokens), _logits(model, tokens), _logits(subject.model(), tokens)
    _require(torch.equal(one, again), f"the same weights give logits that differ by {_distance(one, again):.1e}")
    _require(torch.equal(one, two), f"the same seed gives logits that differ by {_distance(one, two):.1e}")
    other = _logits(subject.model(subject.seed + 1), tokens)
    _require(not torch.equal(one, other), "another seed gives the same logits")
    return "same seed, same logits"


def _round_trip(subject: _Subject, length: int) -> str:
    model, other, tokens = subject.model(), subject.model(subject.seed + 1), subject.tokens(length)
    saved = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    missing = other.load_state_dict(saved)
    _require(not missing.missing_keys and not missing.unexpected_keys, f"keys differ: {missing}")
    _require(torch.equal(_logits(model, tokens), _logits(other, tokens)), "loaded weights give other logits")
    return f"{len(saved)} tensors"


ITEMS: dict[str, Callable[[_Subject, int], str]] = {
    "shapes": _shapes,
    "causality": _causality,
    "gradients": _gradients,
    "decoding": _decoding,
    "state growth": _growth,
    "determinism": _determinism,
    "state dict": _round_trip,
}


def passed(results: list[CheckResult]) -> bool:
    """Whether no item failed; a skipped item is no failure."""
    return all(result.status != "fail" for result in results)


__all__ = ["ITEMS", "CheckResult", "SpecError", "check", "claimed_growth", "passed"]
