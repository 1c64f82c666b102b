"""Where a trained network keeps the slow variable: a linear probe of each layer for the exact posterior.

At every scored position the task says what an ideal observer believes of its slow variable, `p_t` over K values
(`Task.beliefs`). For each layer's residual stream `h_t (D,)` a softmax regression

    q_t = softmax(W h_t + b),   minimising mean KL(p_t || q_t) + ridge |W|^2 / 2

is fitted on validation sequences (features standardised there) and scored on test sequences:

    kl        = mean KL(p_t || q_t), nats
    explained = 1 - kl / mean KL(p_t || p_bar),   p_bar the mean belief on validation

with the standard error of this ratio over test sequences, the fitted probe and `p_bar` held fixed
(`probes.scoring.ratio`): positions of one sequence share a regime and are no independent samples of it.

Layer 0 is the embedding: what the current token alone says. A probe finds what is linearly decodable, not what the
network uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from probes.scoring import kl_divergence, ratio
from probes.task import Batch, Task

RIDGE = 1e-4
SCORES = ("kl", "explained", "explained_se")
"""The fields of a readout that are columns of a row."""


class Readout(NamedTuple):
    """How well one layer's stream tells one belief."""

    belief: str
    layer: int
    kl: float
    explained: float
    explained_se: float
    """Over the test sequences that were reached; NaN for fewer than two."""


def layer_readouts(
    model: nn.Module,
    task: Task,
    fit: Sequence[Batch],
    test: Sequence[Batch],
    *,
    positions: int,
    control: Callable[[Batch], Mapping[str, Tensor] | None] = lambda batch: None,
) -> list[Readout]:
    """Every belief of the task in every layer, from at most `positions` scored positions for fitting and for test.

    The positions are those of the first sequences; `control` makes the model's control tensors. Empty where the task
    has no beliefs or the model gives no features.
    """
    if not task.beliefs(fit[0]):
        return []
    streams, beliefs, _ = _collect(model, task, fit, positions, control)
    if not streams:
        return []
    test_streams, test_beliefs, sequence = _collect(model, task, test, positions, control)
    found = []
    for name, belief in beliefs.items():
        target = test_beliefs[name]
        base = kl_divergence(target.log(), belief.mean(0).log().expand_as(target))
        for layer, (stream, test_stream) in enumerate(zip(streams, test_streams, strict=True)):
            kl = _fit_and_score(stream, belief, test_stream, target)
            left, error = ratio(_by_sequence(sequence, kl), _by_sequence(sequence, base))
            found.append(Readout(name, layer, kl.mean().item(), 1 - left, error))
    return found


def _collect(
    model: nn.Module,
    task: Task,
    batches: Sequence[Batch],
    positions: int,
    control: Callable[[Batch], Mapping[str, Tensor] | None],
) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
    """Features `(n, D)` by layer, beliefs `(n, K)` by name and the number `(n,)` of its sequence, at the first
    `positions` scored positions."""
    streams: list[list[Tensor]] = []
    beliefs: dict[str, list[Tensor]] = {}
    sequences: list[Tensor] = []
    seen = before = 0
    for batch in batches:
        if seen >= positions:
            break
        scored = batch.scored
        with torch.no_grad():
            try:
                tensors = control(batch)
                given = {} if tensors is None else {"control": tensors}
                output = model(batch.tokens, positions=scored, features=True, **given)
            except TypeError:
                return [], {}, torch.empty(0)
        for layer, stream in enumerate(output.extras.get("features", [])):
            if layer == len(streams):
                streams.append([])
            streams[layer].append(stream[scored].double())
        for name, belief in task.beliefs(batch).items():
            beliefs.setdefault(name, []).append(belief)
        sequences.append(before + scored.nonzero()[:, 0])
        seen, before = seen + int(scored.sum()), before + len(batch)
    joined = [torch.cat(parts)[:positions] for parts in streams]
    joined_beliefs = {name: torch.cat(parts)[:positions] for name, parts in beliefs.items()}
    return joined, joined_beliefs, torch.cat(sequences)[:positions]


def _by_sequence(sequence: Tensor, values: Tensor) -> np.ndarray:
    """Sums of values `(n,)` over each sequence that has one."""
    _, group = sequence.unique(return_inverse=True)
    return np.bincount(group.cpu().numpy(), values.double().cpu().numpy())


def _fit_and_score(stream: Tensor, belief: Tensor, test_stream: Tensor, test_belief: Tensor) -> Tensor:
    """KL `(n,)` at each test position from the softmax regression that was fitted."""
    mean, scale = stream.mean(0), stream.std(0).clamp_min(1e-8)
    x, x_test = (stream - mean) / scale, (test_stream - mean) / scale
    weight = torch.zeros(x.shape[1], belief.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
    bias = torch.zeros(belief.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(x @ weight + bias, belief) + RIDGE * weight.square().sum() / 2
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        log_q = torch.log_softmax(x_test @ weight + bias, dim=-1)
        return kl_divergence(test_belief.log(), log_q)
