"""What `S` bits of state cannot exceed, whatever a model does: converses, not predictors.

A memory of `S` bits has read `L` answer tokens, together uniform on `count` strings (`V^L` when the tokens are
independent); it then answers token by token, and may see the right token after each answer.

- log-loss: the chain rule and `I(state; string) <= S ln 2` give `max(0, (ln count - S ln 2) / L)` nats a token.
- exact string: a state value leads to one string at most, so `min(1, 2^S / count)`.
- accuracy: for a given state value at most `ball(r) = sum_{j <= r} C(L, j) (V - 1)^j` strings are answered with `r`
  errors or fewer, feedback or not, since at each place one token is right. Filling these shells from the inside,
  `E[errors] >= sum_{r=0}^{L-1} max(0, 1 - 2^S ball(r) / count)`, the finite-length form of the rate-distortion bound.

A bound does not bind where it is 0 nats, or an accuracy of 1: a float state's nominal bits dwarf a short string.
"""

from __future__ import annotations

import math

from torch import Tensor

from probes.task import Batch, Reference


def log_loss_bound(bits: float, answers: int, log_count: float) -> float:
    """Least mean log-loss in nats a token; `log_count` is `ln` of the number of equally likely strings."""
    return max(0.0, (log_count - bits * math.log(2)) / answers)


def exact_bound(bits: float, log_count: float) -> float:
    """Largest probability of a string without an error."""
    return math.exp(min(0.0, bits * math.log(2) - log_count))


def accuracy_bound(bits: float, answers: int, log_count: float, choices: int) -> float:
    """Largest expected share of right tokens, each of which is one of `choices`."""
    log_ball, errors = -math.inf, 0.0
    for radius in range(answers):
        if choices == 1 and radius:
            break
        shell = math.lgamma(answers + 1) - math.lgamma(radius + 1) - math.lgamma(answers - radius + 1)
        shell += radius * math.log(choices - 1) if choices > 1 else 0.0
        top = max(log_ball, shell)
        log_ball = top + math.log(math.exp(log_ball - top) + math.exp(shell - top))
        reached = bits * math.log(2) + log_ball - log_count
        if reached >= 0:
            break
        errors += -math.expm1(reached)
    return 1 - errors / answers


class StateBound(Reference):
    """The log-loss bound of `bits` of state, the same at every answer of a batch."""

    is_bound = True

    def __init__(self, bits: float, answers: int, log_count: float, choices: int) -> None:
        self.bits = bits
        self.log_loss = log_loss_bound(bits, answers, log_count)
        self.accuracy = accuracy_bound(bits, answers, log_count, choices)
        self.exact = exact_bound(bits, log_count)

    @property
    def binds(self) -> bool:
        """Whether the bound excludes anything."""
        return self.log_loss > 0

    def log_prob(self, batch: Batch) -> Tensor:
        return batch.latents["answers"].double() * -self.log_loss
