"""How weights start, and which of them the optimiser shrinks."""

from __future__ import annotations

from typing import Any

from torch import nn


def initialise(model: nn.Module, std: float) -> None:
    """Embeddings and linear maps from N(0, std^2), biases of linear maps zero.

    Everything else keeps what its own layer chose: norms, convolutions, decays, step sizes, gates. A module with
    `own_initialisation` keeps all below it, and a linear map may be filled afterwards by whoever owns it.
    """
    if getattr(model, "own_initialisation", False):
        return
    if isinstance(model, nn.Linear):
        nn.init.normal_(model.weight, std=std)
        if model.bias is not None:
            nn.init.zeros_(model.bias)
    elif isinstance(model, nn.Embedding):
        nn.init.normal_(model.weight, std=std)
    for child in model.children():
        initialise(child, std)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for AdamW: matrices, embeddings and convolutions decay; the rest does not.

    The rest is every parameter with fewer than two dimensions (norms, biases, A_log, dt_bias, D, gates) and what a
    module lists in `no_weight_decay`. Tied weights are counted once; frozen ones are left out.
    """
    exempt = {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "no_weight_decay", ())
        if getattr(module, name, None) is not None
    }
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (kept if parameter.ndim < 2 or id(parameter) in exempt else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
