"""Models of a user's own, for tests: `model:tests/probes/plugin_models.py:NAME`."""

import torch
from torch import nn


class Bigram(nn.Module):
    """A table of logits, one row a token: the best it can be is the memoryless predictor."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


class TurnsNaN(Bigram):
    """A bigram model whose logits are no longer finite from the fifth training forward pass on."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.passes = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        return super().forward(tokens) * (float("nan") if self.passes >= 5 else 1.0)


class Broken(Bigram):
    """A model that cannot run."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such thing\nas this model")


class Leaking(nn.Module):
    """Reads the next token: the shift by one that a causality bug would be."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.peek = nn.Parameter(torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.table(tokens)
        following = torch.roll(tokens, -1, dims=1)
        return logits + self.peek * nn.functional.one_hot(following, logits.shape[-1])
