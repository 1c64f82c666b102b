"""Before a program trains: the gradients of its step, as it will be run, against the same step in torch alone.

The canary judges kernels one by one; this judges what they are put together to, compiled and captured. The gradient of
every parameter, of one batch, is compared row by row (output channel by output channel) with that of the forms in torch
and the composite attention in float32:

    error of a row = |g - g_ref| / |g_ref|

A parameter's error is that of its worst row but a tenth: rounding disturbs all rows a little, a kernel that is wrong
in one argument disturbs the rows that it reaches altogether, however small their gradients are beside the others'.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from architectures import kernels
from probes.engine.feed import Supervised
from probes.engine.step import StepTrainer, supervised_loss

TOLERANCE = {torch.bfloat16: 0.3, None: 0.05}
"""By the type of autocast. In bf16 on a CPU 0.009 to 0.040 was measured where nothing is wrong (docs/gpu.md has the
command); a wrong kernel gives about 1."""
QUANTILE = 0.9
NEGLIGIBLE = 1e-5
"""Rows whose gradient is smaller than this beside the parameter's largest row are left out."""


@dataclass(frozen=True)
class Verdict:
    """The parameter whose gradient is furthest off, and by how much."""

    parameter: str
    error: float
    tolerance: float

    @property
    def accepted(self) -> bool:
        """Whether the step may be trained on."""
        return self.error <= self.tolerance

    def line(self) -> str:
        """One line for messages."""
        return (
            f"gradient of {self.parameter}: relative error {self.error:.2g} of its rows, tolerance {self.tolerance:g}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "accepted": self.accepted}


def judge(trainer: StepTrainer) -> Verdict:
    """Runs one step of a prepared trainer as it will be run, puts everything back, and compares its gradients."""
    found, given = trainer.gradients()
    expected = reference(trainer.model, given)
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    worst = ("none", 0.0)
    for parameter, gradient in zip(trainer.optimizer.parameters, found, strict=True):
        name = names[id(parameter)]
        error = row_error(gradient, expected[name])
        if not error <= worst[1]:  # NaN is worse than anything
            worst = (name, error)
    return Verdict(*worst, TOLERANCE[trainer.autocast])


def reference(model: nn.Module, given: Supervised) -> dict[str, Tensor]:
    """Gradients by parameter's name in float32, through the forms in torch."""
    twin = copy.deepcopy(model)
    names, parameters = zip(*((n, p) for n, p in twin.named_parameters() if p.requires_grad), strict=True)
    with kernels.torch_forms():
        loss, _ = supervised_loss(twin, given.tokens, given.at, given.target, given.control, None)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)}


def row_error(found: Tensor, expected: Tensor) -> float:
    """The error of all rows but the worst tenth; a vector is one row. `inf` where a gradient should be zero."""
    one, other = (x.double().reshape(len(x) if x.ndim > 1 else 1, -1) for x in (found, expected))
    size, error = other.norm(dim=1), (one - other).norm(dim=1)
    if not bool(size.any()):
        return 0.0 if not bool(error.any()) else float("inf")
    kept = size > NEGLIGIBLE * size.max()
    return float((error[kept] / size[kept]).quantile(QUANTILE))
