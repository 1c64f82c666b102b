"""Control tensors from the exact filter of a two-timescale task: an oracle's gates, which never see a target.

At position t they know `x_0..x_t`, as a model does. In nats:

    surprise_t = -log P(x_t | x_0..x_{t-1}),   entropy_t = -sum_v P(v | x_0..x_t) log P(v | x_0..x_t)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from filters import torch_backend
from filters.hmm import TwoTimescaleHMM
from probes.controls import Inapplicable
from probes.task import Batch, Task


def surprise(batch: Batch, task: Task, generator: torch.Generator) -> Tensor:
    """The filter's surprise at each token, `(B, T)` float32; log V at a first token that the model says nothing of."""
    hmm, tokens = exact_model(task, "exact_surprise"), batch.tokens
    first = torch.full_like(tokens[:, :1], math.log(hmm.vocab_size), dtype=torch.float64)
    if hmm.initial_emission is not None:
        probability = torch.tensor(hmm.initial @ hmm.initial_emission, device=tokens.device)
        first = -probability.log()[tokens[:, :1]]
    return torch.cat([first, -torch_backend.forward(hmm, tokens).log_prob], dim=1).float()


def entropy(batch: Batch, task: Task, generator: torch.Generator) -> Tensor:
    """The entropy of the filter's next-token distribution after each token, `(B, T)` float32."""
    hmm, tokens = exact_model(task, "exact_entropy"), batch.tokens
    posterior = torch_backend.forward(hmm, tokens).posterior
    prior = posterior @ torch.tensor(hmm.transition, device=tokens.device)
    tables = torch.tensor(hmm.emission, device=tokens.device)
    predictive = sum(prior[..., j, None] * tables[j][tokens] for j in range(hmm.regimes))
    return torch.special.entr(torch.as_tensor(predictive)).sum(-1).float()


def exact_model(task: Task, schedule: str) -> TwoTimescaleHMM:
    """The task's exact model. Raises `Inapplicable` where it has none."""
    hmm = getattr(task, "hmm", None)
    if not isinstance(hmm, TwoTimescaleHMM):
        raise Inapplicable(f"schedule: {schedule!r} needs a task with an exact filter, which {task.name!r} lacks")
    return hmm
