"""What a state of given size can copy: the longest string without loss, and the bound on accuracy beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures import _readers as readers
from figures import _trained as trained
from figures.style import COLORS, PAGE, new, save, style

DIALS: dict[str, Any] = {
    "bits": [2, 8, 16, 32],
    "vocabulary": 16,
    "coordinates": [1, 4, 16, 64, 256, 1024],
    "states": [32, 128],
    "lengths": [4, 8, 16, 32, 64, 128, 256, 512],
    "results": None,
}
ABOUT: dict[str, str] = {
    "bits": "bits that a coordinate of the state holds",
    "vocabulary": "symbols of the string",
    "coordinates": "coordinates of the state",
    "states": "bits of the memories on the right",
    "lengths": "symbols to copy",
    "results": "a sweep over task.string of copy, drawn beside; null for none",
}


def draw(
    out: Path,
    *,
    bits: list[float] | None = None,
    vocabulary: int = 16,
    coordinates: list[int] | None = None,
    states: list[int] | None = None,
    lengths: list[int] | None = None,
    results: str | Path | None = None,
) -> list[Path]:
    """Draws `n = d b / log2 V`, and accuracy over the string's length: a ring buffer below the bound of its state.

    Bounds are dashed and without marks; they are no predictors.
    """
    sizes, grid = np.array(coordinates or DIALS["coordinates"]), np.array(lengths or DIALS["lengths"])
    numbers = table(bits or DIALS["bits"], vocabulary, sizes, states or DIALS["states"], grid)
    with style():
        figure = new(PAGE, 3.6)
        left, right = figure.subplots(1, 2)
        for color, (name, part) in zip(COLORS, numbers[numbers.kind == "lossless"].groupby("bits")):
            left.plot(part.coordinates, part.length, "--", color=color, label=f"{name:g}")
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.set_xlabel("coordinates of the state")
        left.set_ylabel(f"longest lossless copy (tokens of {vocabulary})")
        trained.below(left, "bits a coordinate")
        for color, state in zip(COLORS, states or DIALS["states"]):
            bound = numbers[(numbers.kind == "accuracy bound") & (numbers.bits == state)]
            buffer = numbers[(numbers.kind == "ring buffer") & (numbers.bits == state)]
            right.plot(bound.length, bound.accuracy, "--", color=color, label=f"{state} bits: bound")
            right.plot(buffer.length, buffer.accuracy, "o-", color=color, label=f"{state} bits: ring buffer")
        if results is not None:
            found = trained.accuracy_by(results, "string")
            trained.plot(right, found, "")
            numbers = pd.concat([numbers, found.rename(columns={"x": "length"})], ignore_index=True)
        right.set_xscale("log", base=2)
        right.set_ylim(0, 1.05)
        right.set_xlabel("tokens to copy")
        right.set_ylabel("accuracy")
        trained.below(right)
        return save(figure, out, "copying_bound", numbers)


def table(
    bits: list[float], vocabulary: int, coordinates: np.ndarray, states: list[int], lengths: np.ndarray
) -> pd.DataFrame:
    """Rows of three kinds: `lossless` (coordinates, bits, length), `accuracy bound` and `ring buffer`."""
    parts = []
    for width in bits:
        length = readers.copied_tokens(coordinates, width, vocabulary)
        parts.append(pd.DataFrame({"kind": "lossless", "bits": width, "coordinates": coordinates, "length": length}))
    for state in states:
        bound = [readers.copying_accuracy_bound(state, int(length), vocabulary) for length in lengths]
        buffer = readers.ring_buffer_accuracy(state, lengths, vocabulary)
        for kind, accuracy in (("accuracy bound", bound), ("ring buffer", buffer)):
            parts.append(pd.DataFrame({"kind": kind, "bits": state, "length": lengths, "accuracy": accuracy}))
    return pd.concat(parts, ignore_index=True)
