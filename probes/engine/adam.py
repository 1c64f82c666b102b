"""AdamW over one flat buffer, as few kernels whatever the number of parameters.

Parameters and moments are views of flat float32 buffers, so clipping by the global norm and the update are a gather of
the gradients, a norm and one pass over the elements, with g the gradient, n its global norm, c the bound:

    g <- g min(1, c / (n + 1e-6)),  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
    p <- (1 - lr s d) p - lr s / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)        at step t, from 1

s is a parameter's scale of the learning rate, d its weight decay.

The numbers are those of `torch.optim.AdamW` after `clip_grad_norm_`.

Reference: Loshchilov & Hutter 2019, arXiv 1711.05101.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 32
"""Elements: every parameter begins at a multiple of 128 bytes."""
EPS = 1e-8

Update = Callable[..., None]


def numbers(rates: Sequence[float], betas: tuple[float, float]) -> Tensor:
    """`(S, 3)` for steps 1 to S with learning rates `rates`: lr, lr / (1 - b1^t), 1 / sqrt(1 - b2^t)."""
    return torch.tensor([_row(lr, t, betas) for t, lr in enumerate(rates, start=1)], dtype=torch.float32)


def _row(lr: Any, t: int, betas: tuple[float, float]) -> tuple[Any, Any, float]:
    beta1, beta2 = betas
    return lr, lr / (1 - beta1**t), (1 - beta2**t) ** -0.5


def update(
    parameters: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    scale: Tensor,
    decay: Tensor,
    now: Tensor,
    clip: float,
    beta1: float,
    beta2: float,
) -> None:
    """One step on flat buffers `(N,)`, in place. `decay` is s d, `now` the step's row of `numbers`, `(3,)`."""
    lr, rate, root = now.unbind()
    norm = gradients.square().sum().sqrt()
    g = gradients * (clip / (norm + 1e-6)).clamp(max=1.0)
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    parameters.mul_(1 - lr * decay)
    parameters.sub_(rate * scale * first / (second.sqrt() * root + EPS))


class FlatAdamW:
    """Takes the parameters of `groups` over: from here on they are views of `self.flat`.

    `groups` as for `torch.optim.AdamW`, with an optional `lr_scale`. `clip` bounds the global norm of the gradients.
    `state_dict` and `load_state_dict` are those of `torch.optim.AdamW` for the same groups.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        betas: tuple[float, float],
        clip: float,
        update: Update = update,
    ) -> None:
        self.groups, self.betas, self.clip, self.update = list(groups), betas, clip, update
        self.parameters: list[nn.Parameter] = [p for group in self.groups for p in group["params"]]
        device = self.parameters[0].device
        places, size = [], 0
        for parameter in self.parameters:
            places.append(size)
            size += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self.flat, self.gradients, self.first, self.second, self.scale, self.decay = (
            torch.zeros(size, device=device) for _ in range(6)
        )
        self.places = places
        self._gap = torch.zeros(ALIGNMENT, device=device)
        self._nothing: dict[int, Tensor] = {}
        self.missed = [0] * len(self.parameters)
        """Steps at which each parameter had no gradient and was left alone."""
        self.options = [
            (group.get("lr_scale", 1.0), group.get("weight_decay", 0.0))
            for group in self.groups
            for _ in group["params"]
        ]
        with torch.no_grad():
            for parameter, view, scale, decay, (s, d) in zip(
                self.parameters,
                self.views(self.flat),
                self.views(self.scale),
                self.views(self.decay),
                self.options,
                strict=True,
            ):
                view.copy_(parameter)
                parameter.data = view
                scale.fill_(s)
                decay.fill_(s * d)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The parts of a flat buffer that belong to the parameters, in their shapes."""
        return [
            buffer[place : place + p.numel()].view(p.shape)
            for place, p in zip(self.places, self.parameters, strict=True)
        ]

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, now: Tensor, count: int) -> None:
        """The update with the step's row of `numbers`, the `count`-th from 1; gradients are left as they are.

        A parameter without a gradient is left alone, as by torch, and its own count of steps stands still. In a graph
        that is so at every step or at none.
        """
        parts = []
        for index, parameter in enumerate(self.parameters):
            size = parameter.numel()
            if parameter.grad is None:
                if index not in self._nothing:
                    self._nothing[index] = torch.zeros(size, device=self.flat.device)
                parts.append(self._nothing[index])
            else:
                parts.append(parameter.grad.flatten())
            if size % ALIGNMENT:
                parts.append(self._gap[size % ALIGNMENT :])
        torch.cat(parts, out=self.gradients)
        missing = any(parameter.grad is None for parameter in self.parameters)
        if self.flat.is_cuda and torch.cuda.is_current_stream_capturing():
            for parameter, place in zip(self.parameters, self.places, strict=True):
                if parameter.grad is None:
                    self.scale[place : place + parameter.numel()].zero_()
                    self.decay[place : place + parameter.numel()].zero_()
        elif missing or any(self.missed):
            self._one_by_one(now[0], count)
            return
        self.update(
            self.flat, self.gradients, self.first, self.second, self.scale, self.decay, now, self.clip, *self.betas
        )

    def _one_by_one(self, lr: Tensor, count: int) -> None:
        """The same, parameter by parameter, each with its own count of steps."""
        norm = self.gradients.square().sum().sqrt()
        clipped = self.gradients * (self.clip / (norm + 1e-6)).clamp(max=1.0)
        buffers = (self.flat, clipped, self.first, self.second)
        for index, (parameter, place, (scale, decay)) in enumerate(
            zip(self.parameters, self.places, self.options, strict=True)
        ):
            if parameter.grad is None:
                self.missed[index] += 1
                continue
            row = _row(lr, count - self.missed[index], self.betas)
            now = torch.stack([torch.as_tensor(x, dtype=lr.dtype, device=lr.device) for x in row])
            p, g, m, v = (buffer[place : place + parameter.numel()] for buffer in buffers)
            scales, decays = torch.full_like(p, scale), torch.full_like(p, scale * decay)
            update(p, g, m, v, scales, decays, now, math.inf, *self.betas)

    def close(self) -> None:
        """Lets gradients and moments go; the parameters get memory of their own."""
        self.zero_grad()
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
        del self.flat, self.gradients, self.first, self.second, self.scale, self.decay

    def save(self) -> Callable[[], None]:
        """Keeps parameters and moments, and returns what puts them back in place."""
        kept = [(buffer, buffer.clone()) for buffer in (self.flat, self.first, self.second)]
        missed = list(self.missed)

        def restore() -> None:
            self.missed = list(missed)
            for buffer, value in kept:
                buffer.copy_(value)

        return restore

    def _torch(self) -> torch.optim.AdamW:
        groups = [{**group, "params": list(group["params"])} for group in self.groups]
        return torch.optim.AdamW(groups, lr=1.0, betas=self.betas, eps=EPS, fused=True)

    def state_dict(self, step: int) -> dict[str, Any]:
        """The state of `torch.optim.AdamW` after `step` steps."""
        optimizer = self._torch()
        views = zip(self.parameters, self.views(self.first), self.views(self.second), self.missed, strict=True)
        for parameter, first, second, missed in views:
            if step > missed:
                count = torch.tensor(float(step - missed), device=parameter.device)
                optimizer.state[parameter] = {"step": count, "exp_avg": first.clone(), "exp_avg_sq": second.clone()}
        return optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Takes the moments over from a state of `torch.optim.AdamW` for the same groups after `step` steps."""
        optimizer = self._torch()
        optimizer.load_state_dict(state)
        views = zip(self.parameters, self.views(self.first), self.views(self.second), strict=True)
        for index, (parameter, first, second) in enumerate(views):
            known = optimizer.state.get(parameter)
            self.missed[index] = step - int(known["step"]) if known else step
            if known:
                first.copy_(known["exp_avg"])
                second.copy_(known["exp_avg_sq"])
