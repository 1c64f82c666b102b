"""What a model costs, by formula from its spec, without building it and without torch.

`parameters`, `state_bytes` and `forward_flops` take a spec of any kind; tests hold them against built models on the
meta device and against their real decoding states. Plug-ins have no formula: `NoFormula`, one line.
"""

from __future__ import annotations

from .cost import Cost, NoFormula
from .count import cost, forward_flops, parameters, state_bytes
from .match import Match, match, matched
from .oryx import active_parameters
from .table import row, rows, scale_rows

__all__ = [
    "Cost",
    "Match",
    "NoFormula",
    "active_parameters",
    "cost",
    "forward_flops",
    "match",
    "matched",
    "parameters",
    "row",
    "rows",
    "scale_rows",
    "state_bytes",
]
