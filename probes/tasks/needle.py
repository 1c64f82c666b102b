"""Needle in a haystack: a key-value pair at some depth in filler, then its key, whose value is asked for.

`probes.tasks.entries` has the layout and the exact answers; the depth dial fixes the cell of the needle asked for,
`round(depth (C - 1))`, which a reader then knows. Token analogues of RULER's single- and multi-key tests: repeated
filler (S-NIAH-1), random filler (S-NIAH-2), long values (S-NIAH-3), several distracting keys (MK-NIAH).

Reference: Hsieh et al. (2024), RULER (arXiv 2404.06654), table 2.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from probes.tasks.entries import EntriesTask
from probes.tasks.recall import RecallSettings
from probes.tasks.settings import refuse


class NeedleSettings(RecallSettings):
    """Dials of `needle`."""

    length: int = Field(128, ge=4)
    needles: int = Field(1, ge=1)
    """Needles in the haystack; one is asked for, the others are distracting keys."""
    haystack: Literal["repeated", "random"] = "random"
    """Filler: its tokens in turn, over and over, or drawn at random."""
    filler: int = Field(16, ge=1)
    """Tokens that filler is made of."""
    key_tokens: int = Field(16, ge=1)
    value_length: int = Field(1, ge=1)
    value_tokens: int = Field(10, ge=2)
    depth: float | None = Field(None, ge=0, le=1)
    """Where the needle asked for lies, 0 the beginning, 1 the end; None: anywhere."""


class Needle(EntriesTask):
    """See the module."""

    name = "needle"
    Dials = NeedleSettings
    entries_dial = "needles"

    def setup(self, dials: NeedleSettings) -> None:
        self.entries, self.marker, self.filler = dials.needles, True, dials.filler
        self.key_length, self.key_tokens = 1, dials.key_tokens
        self.value_length, self.value_tokens = dials.value_length, dials.value_tokens
        self.depth, self.repeated = dials.depth, dials.haystack == "repeated"
        context = dials.length - 1 - dials.value_length
        if context < 0:
            refuse(
                self.name, "length", dials.length, "too short for the query", dials.needles * (2 + dials.value_length)
            )
        self.arrange(dials, context)
