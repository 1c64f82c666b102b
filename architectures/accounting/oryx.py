"""Oryx's weights: how many take part in a token's output, how many are kept, how many both mixers use.

Reference: Li et al., Oryx, arXiv 2605.28769, section 4 (setup).
"""

from __future__ import annotations

from typing import Literal

from ..spec import resolve
from .count import parameters
from .models import Spec, oryx_cost, oryx_decay


def active_parameters(spec: Spec, rule: Literal["exact", "published"] = "exact") -> int:
    """Weights that take part in one token's output: all but the other mixer's query projections.

    Any other kind of model has all of its parameters active. `published` counts Oryx as the paper's sizes do:
    the embedding and 13 D^2 a layer, 5 of the mixer and 8 of the MLP.
    """
    spec = resolve(spec)
    if spec["kind"] != "oryx":
        return parameters(spec)
    squares = spec["layers"] * spec["d_model"] ** 2
    if rule == "published":
        return spec["vocab_size"] * spec["d_model"] + 13 * squares
    return parameters(spec) - squares * (spec["queries"] == "own")


def stored_parameters(spec: Spec, rule: Literal["exact", "published"] = "exact") -> int:
    """All weights, both query projections included; `published` leaves out what is not D^2 in size."""
    spec = resolve(spec)
    if spec["kind"] == "oryx" and rule == "published":
        own = spec["layers"] * spec["d_model"] ** 2 * (spec["queries"] == "own")
        return active_parameters(spec, "published") + own
    return parameters(spec)


def shared_fraction(
    spec: Spec, of: Literal["active", "stored"] = "active", rule: Literal["exact", "published"] = "exact"
) -> float:
    """The layers' weights that both mixers use, as a fraction of the layers' active or stored weights.

    Embedding, head and final norm are not counted. The paper's own count gives 12/13 of the active weights.
    """
    spec = resolve(spec)
    d, layers = spec["d_model"], spec["layers"]
    ends = spec["vocab_size"] * d if rule == "published" else _ends(spec)
    stored = stored_parameters(spec, rule) - ends
    own = layers * d * d * (spec["queries"] == "own")
    alone = layers * round(oryx_decay(spec).parameters) if rule == "exact" else 0
    return (stored - 2 * own - alone) / (stored - own if of == "active" else stored)


def _ends(spec: Spec) -> int:
    return round(oryx_cost({**spec, "modes": [], "layers": 0}, 1, 0.0).parameters)
