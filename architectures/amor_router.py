"""The predictor that stands in for the entropy, so that a gate need not call the language-model head.

    score(h~) = a . SiLU(W h~ + b) + s . h~ + c,   W in R^{r x D}

Reference: AMOR, arXiv 2602.13215, eq. 13 and appendix G.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Router(nn.Module):
    """`(B, T, D)` to scores `(B, T)`, computed in float32. `r D + 2 r + D + 1` parameters.

    It keeps the initialisation of `nn.Linear`: untrained, it is the paper's random router. Its gradient reaches its
    own parameters, never the features.
    """

    own_initialisation = True

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, hidden)
        self.out = nn.Linear(hidden, 1, bias=False)
        self.skip = nn.Linear(d_model, 1)

    def forward(self, features: Tensor) -> Tensor:
        x = features.detach().float()
        with torch.autocast(x.device.type, enabled=False):
            hidden = F.silu(F.linear(x, self.hidden.weight.float(), self.hidden.bias.float()))
            bent = F.linear(hidden, self.out.weight.float())
            straight = F.linear(x, self.skip.weight.float(), self.skip.bias.float())
        return (bent + straight)[..., 0]
