"""Schedules of Oryx's mode: which tokens are written by attention (0) and which by the recurrence (1).

Each is called as `(batch, task, generator, **parameters)` and returns int64 `(B, T)` on the batch's device, random
only through the generator. Fixed and random schedules have shapes known beforehand and never wait for the device;
those that look at scored positions may.

Reference: Li et al., Oryx, arXiv 2605.28769, sections 3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from architectures.oryx_spec import ATTENTION, LINEAR
from probes.controls import Inapplicable
from probes.messages import nearest
from probes.task import Batch, Task

MODES = {"attention": ATTENTION, "linear": LINEAR}
"""The names of the modes in parameters."""
CHUNK = 128
"""Tokens of a chunk in the paper's training."""


def attention(batch: Batch, task: Task, generator: torch.Generator) -> Tensor:
    """Attention at every token."""
    return torch.full_like(batch.tokens, ATTENTION)


def linear(batch: Batch, task: Task, generator: torch.Generator) -> Tensor:
    """The recurrence at every token."""
    return torch.full_like(batch.tokens, LINEAR)


def random_chunks(
    batch: Batch, task: Task, generator: torch.Generator, *, chunk: int | None = None, attention: float = 0.25
) -> Tensor:
    """Chunks of `chunk` tokens, each in attention mode with probability `attention`: chunked mixed-mode training.

    One draw for each chunk of each sequence; the last chunk may be shorter. The defaults are the paper's 1 : 3 and
    its 128 tokens, or a quarter of a sequence that is shorter than 512, which would otherwise hardly be mixed.
    """
    _fraction("attention", attention)
    size, length = batch.tokens.shape
    chunk = min(CHUNK, -(-length // 4)) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk: {chunk} is below 1; nearest: 1")
    draws = torch.rand(size, -(-length // chunk), generator=generator, device=batch.tokens.device)
    return _modes(draws < attention).repeat_interleave(chunk, dim=1)[:, :length]


def per_sequence(batch: Batch, task: Task, generator: torch.Generator, *, attention: float = 0.25) -> Tensor:
    """One mode for each whole sequence, attention with probability `attention`: sequence-level training."""
    _fraction("attention", attention)
    draws = torch.rand(len(batch), 1, generator=generator, device=batch.tokens.device)
    return _modes(draws < attention).expand_as(batch.tokens)


def switch(
    batch: Batch,
    task: Task,
    generator: torch.Generator,
    *,
    at: int | float | Sequence[int | float] = 0.5,
    first: str = "attention",
) -> Tensor:
    """Starts in mode `first` and changes to the other at each position of `at`.

    A position below 1 that is no integer is a fraction of the length: at 0.975 attention to the last 2.5% of tokens.
    """
    length = batch.tokens.shape[1]
    position = torch.arange(length, device=batch.tokens.device)
    mode = torch.full_like(position, _mode("first", first))
    for place in at if isinstance(at, Sequence) else [at]:
        mode = torch.where(position >= _place("at", place, length), 1 - mode, mode)
    return mode.expand_as(batch.tokens)


def prompt(
    batch: Batch,
    task: Task,
    generator: torch.Generator,
    *,
    context: str = "linear",
    prompt: str = "attention",
    start: str | int | float = "query",
) -> Tensor:
    """The context in one mode, the prompt and what follows in another.

    `start`, where the prompt begins: `query`, each sequence's first answered or else scored position (the query token
    of a recall task, where its answer is predicted); a position; or a fraction of the length (the paper takes 0.975
    where a task marks no prompt). A sequence without a query is all context.
    """
    before, after = _mode("context", context), _mode("prompt", prompt)
    length = batch.tokens.shape[1]
    position = torch.arange(length, device=batch.tokens.device)
    if isinstance(start, str):
        if start != "query":
            raise ValueError(f"start: unknown {start!r}; 'query', a position or a fraction of the length")
        asked = batch.latents.get("answers", batch.scored)
        begin = torch.where(asked.any(1), asked.int().argmax(1), length)[:, None]
        return torch.where(position >= begin, after, before)
    return torch.where(position >= _place("start", start, length), after, before).expand_as(batch.tokens)


def periodic(
    batch: Batch, task: Task, generator: torch.Generator, *, period: int = 4, attention: int = 1, offset: int = 0
) -> Tensor:
    """Attention for `attention` tokens of every `period`: where (t - offset) mod period < attention."""
    if period < 1:
        raise ValueError(f"period: {period} is below 1; nearest: 1")
    if not 0 <= attention <= period:
        raise ValueError(f"attention: {attention} tokens of a period of {period}; nearest: {period}")
    position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return _modes((position - offset) % period < attention).expand_as(batch.tokens)


def reference(
    batch: Batch,
    task: Task,
    generator: torch.Generator,
    *,
    name: str = "bayes",
    threshold: float | None = None,
    fraction: float | None = None,
    elsewhere: str = "linear",
) -> Tensor:
    """Attention where an exact reference is uncertain: where the entropy of its P(x_{t+1} | x_0..x_t) is high.

    High is above `threshold` nats, or among the `fraction` of the batch's scored positions with the highest entropy.
    Positions that are not scored take the mode `elsewhere`. Nothing depends on a target.
    """
    references = task.references()
    if name not in references:
        raise Inapplicable(f"name: unknown reference {name!r}{nearest(name, references)}")
    log_p = references[name].log_predictive(batch)
    if log_p is None:
        raise Inapplicable(f"name: {name!r} is a bound, which has no distribution; nearest: 'bayes'")
    mode = torch.full_like(batch.tokens, _mode("elsewhere", elsewhere))
    mode[batch.scored] = _modes(_high(entropy(log_p), threshold, fraction))
    return mode


def model_entropy(
    batch: Batch,
    task: Task,
    generator: torch.Generator,
    *,
    model: nn.Module,
    threshold: float | None = None,
    fraction: float | None = None,
) -> Tensor:
    """Attention where the model is uncertain in linear mode: the entropy of its prediction at t, in an all-linear pass,
    is above `threshold` nats, or among the `fraction` of the batch with the highest.

    With a threshold the mode at t depends on tokens up to t alone, and decoding can follow it with a second, all-linear
    state beside the model's own.
    """
    parts = max(1, -(-batch.tokens.numel() * task.vocab_size // 2**24))
    values = []
    with torch.no_grad():
        for tokens in batch.tokens.chunk(parts):
            logits = model(tokens, control={"mode": torch.full_like(tokens, LINEAR)}).logits
            values.append(entropy(torch.log_softmax(logits.double(), -1)))
    return _modes(_high(torch.cat(values), threshold, fraction))


def entropy(log_p: Tensor) -> Tensor:
    """`-sum_v p_v log p_v` over the last dimension, nats; terms with p = 0 are 0."""
    p = log_p.exp()
    return -torch.where(p > 0, p * log_p, 0.0).sum(-1)


def _high(values: Tensor, threshold: float | None, fraction: float | None) -> Tensor:
    if (threshold is None) == (fraction is None):
        raise ValueError("threshold, fraction: give one of the two")
    if threshold is None:
        assert fraction is not None
        _fraction("fraction", fraction)
        ordered = values.flatten().sort(descending=True).values
        count = round(fraction * len(ordered))
        if count in (0, len(ordered)):
            return torch.full_like(values, count > 0, dtype=torch.bool)
        return values > ordered[count]
    return values > threshold


def _modes(attends: Tensor) -> Tensor:
    return torch.where(attends, ATTENTION, LINEAR)


def _mode(key: str, name: str) -> int:
    if name not in MODES:
        raise ValueError(f"{key}: unknown mode {name!r}{nearest(name, MODES)}")
    return MODES[name]


def _fraction(key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{key}: {value} is no fraction; nearest: {min(1, max(0, value))}")


def _place(key: str, value: int | float, length: int) -> int:
    if isinstance(value, float) and value != int(value):
        _fraction(key, value)
        return round(value * length)
    if not 0 <= value <= length:
        raise ValueError(f"{key}: {value} is no position of {length}; nearest: {min(length, max(0, int(value)))}")
    return int(value)
