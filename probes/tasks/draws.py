"""Random draws as pure functions of a generator's uniform numbers, without a loop over sequences.

All functions work on the generator's device, draw float64 uniforms in a fixed number, and never wait for a value: the
same code runs on the CPU, on a GPU and inside a captured graph. `B` sequences, `n` items, `k` of them drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


def uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent uniform numbers in [0, 1), float64, of the given shape."""
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


def integers(generator: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    """Independent integers, uniform on `low, ..., high - 1`, int64 of the given shape."""
    return uniforms(generator, *shape).mul_(high - low).long().add_(low)


def distinct(generator: torch.Generator, n: int, k: int, batch_size: int) -> Tensor:
    """`k` of `0, ..., n - 1` without replacement, in random order: `(B, k)` int64. Requires `k <= n`.

    The first `k` steps of a Fisher-Yates shuffle, where step `i` swaps place `i` with `p_i`, uniform on
    `i, ..., n - 1`. Nothing of size `n` is touched: step `i` takes what stood at `p_i`, which is `p_i` itself unless
    an earlier step `j` (the last with `p_j = p_i`) put there what stood at `j`; and these links are followed by
    pointer doubling. Where `k` is so large that comparing all steps costs more than a sort, `n` uniforms are sorted.
    """
    if k * k > 8 * n:
        return uniforms(generator, batch_size, n).argsort(-1)[:, :k]
    step = torch.arange(k, device=generator.device)
    place = uniforms(generator, batch_size, k).mul_(n - step).long().add_(step)
    short = place.int() if n < 2**31 else place
    content = _last_earlier(short, step.to(short.dtype).expand(batch_size, k))
    for _ in range(max(k - 1, 0).bit_length()):
        content = content.gather(1, content)
    earlier = _last_earlier(short, short)
    moved = content.gather(1, earlier)
    return torch.where(earlier == step, torch.where(place == step, content, place), moved)


def _last_earlier(place: Tensor, value: Tensor) -> Tensor:
    """For each step `i` the last `j < i` with `place[j] == value[i]`, `i` itself where there is none: `(B, k)`."""
    k = place.shape[1]
    step = torch.arange(k, device=place.device, dtype=torch.int32)
    same = (value[:, :, None] == place[:, None, :]) & (step[None, :] < step[:, None])
    last = torch.where(same, step, -1).amax(-1).long()
    return torch.where(last < 0, torch.arange(k, device=place.device), last)


def weighted_distinct(generator: torch.Generator, log_weights: Tensor, k: int, batch_size: int) -> Tensor:
    """`k` items without replacement, each draw in proportion to the weights that are left, in the order drawn.

    `log_weights` `(n,)`; the result is `(B, k)` int64. Items get independent exponential clocks whose rates are the
    weights, and the first `k` to ring are taken (Efraimidis and Spirakis, 2006), which is successive sampling.
    """
    n = log_weights.shape[0]
    clocks = (
        torch.log1p(-uniforms(generator, batch_size, n)).neg_().div_(on_device(log_weights, generator.device).exp())
    )
    return clocks.topk(k, dim=1, largest=False, sorted=True).indices


def on_device(constant: Tensor, device: torch.device) -> Tensor:
    """A constant on `device`, copied there once: a copy from the host would end the capture of a graph."""
    copies = _COPIES.setdefault(constant, {})
    if device not in copies:
        copies[device] = constant.to(device)
    return copies[device]


_COPIES: WeakIdKeyDictionary = WeakIdKeyDictionary()


def shuffled(generator: torch.Generator, k: int, batch_size: int) -> Tensor:
    """Random permutations of `0, ..., k - 1`: `(B, k)` int64."""
    return uniforms(generator, batch_size, k).argsort(-1)
