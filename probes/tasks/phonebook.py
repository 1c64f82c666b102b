"""Phonebook: `N` entries of name and number, then one of the names, whose number is asked for.

`probes.tasks.entries` has the layout and the exact answers; here every cell holds an entry and there is no filler.

Reference: Jelassi et al. (2024), Repeat After Me (arXiv 2402.01032), section 4.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from probes.tasks.entries import EntriesTask
from probes.tasks.recall import RecallSettings


class PhonebookSettings(RecallSettings):
    """Dials of `phonebook`."""

    entries: int = Field(8, ge=1)
    name_length: int = Field(2, ge=1)
    name_tokens: int = Field(8, ge=1)
    """Alphabet of the names, which are distinct."""
    number_length: int = Field(3, ge=1)
    number_tokens: int = Field(10, ge=2)


class Phonebook(EntriesTask):
    """See the module."""

    name = "phonebook"
    Dials = PhonebookSettings

    def setup(self, dials: PhonebookSettings) -> None:
        self.entries, self.marker, self.filler, self.depth, self.repeated = dials.entries, False, 0, None, False
        self.key_length, self.key_tokens = dials.name_length, dials.name_tokens
        self.value_length, self.value_tokens = dials.number_length, dials.number_tokens
        self.arrange(dials, dials.entries * (dials.name_length + dials.number_length))

    def stretched(self, factor: int) -> dict[str, Any]:
        return {**self.settings, "entries": factor * self.entries}
