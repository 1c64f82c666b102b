"""What a model reports of every position (`extras["fields"]`, `(B, T)` each), averaged over test sequences.

By position over all sequences; by label of each slice, and by tokens since the last change of regime where the task has
regimes, over scored positions; and as it is for the first few sequences. `curves` names the arrays as
`probes.results.CURVES` says.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from probes.task import Batch

SAMPLES = 4
"""Sequences kept as they are."""
LAGS = 128
"""Tokens since a change of regime that are told apart, from 0: the first token of the new regime."""


class FieldRecorder:
    """Adds up batch after batch; `curves()` has the means."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}
        self.labels: dict[str, dict[int, float]] = {}
        self.samples: dict[str, np.ndarray] = {}

    def add(self, batch: Batch, fields: Mapping[str, Tensor]) -> None:
        """One batch with the model's fields."""
        if not fields:
            return
        scored = batch.scored.cpu().numpy()
        groups = {f"slice/{name}": label.cpu().numpy() for name, label in batch.slices.items()}
        if "regimes" in batch.latents:
            groups["since_switch"] = since_switch(batch.latents["regimes"].cpu().numpy()[:, : scored.shape[1]])
        groups = {name: np.where(scored, label, -1) for name, label in groups.items()}
        arrays = {name: value.detach().float().cpu().numpy() for name, value in fields.items()}
        self._sum("position", "count", np.full(scored.shape[1], float(len(batch))))
        for group, label in groups.items():
            self._group(group, "count", label, np.ones(label.shape))
        for name, value in arrays.items():
            self._sum("position", name, value.sum(0))
            for group, label in groups.items():
                self._group(group, name, label, value)
        if not self.samples:
            self.samples = {"tokens": batch.tokens[:SAMPLES].cpu().numpy(), "scored": scored[:SAMPLES]}
            if "regimes" in batch.latents:
                self.samples["regimes"] = batch.latents["regimes"][:SAMPLES, : scored.shape[1]].cpu().numpy()
            self.samples |= {f"field/{name}": value[:SAMPLES] for name, value in arrays.items()}

    def _sum(self, group: str, name: str, value: np.ndarray) -> None:
        key = f"{group}/{name}"
        self.sums[key] = self.sums[key] + value if key in self.sums else value

    def _group(self, group: str, name: str, label: np.ndarray, value: np.ndarray) -> None:
        totals = self.labels.setdefault(f"{group}/{name}", {})
        found, index = np.unique(label[label >= 0], return_inverse=True)
        for one, total in zip(found, np.bincount(index, value[label >= 0], len(found)), strict=True):
            totals[int(one)] = totals.get(int(one), 0.0) + float(total)

    def curves(self) -> dict[str, np.ndarray]:
        """The arrays for `curves.npz`."""
        result = {f"sample/{name}": value for name, value in self.samples.items()}
        for key, value in self.sums.items():
            group, _, name = key.partition("/")
            if name != "count":
                result[f"field/{name}/{group}"] = value / self.sums[f"{group}/count"]
        for key, totals in self.labels.items():
            group, _, name = key.rpartition("/")
            labels = sorted(self.labels[f"{group}/count"])
            counts = np.array([self.labels[f"{group}/count"][label] for label in labels])
            if name == "count":
                result[f"field/{group}/labels"], result[f"field/{group}/count"] = np.array(labels), counts
            else:
                result[f"field/{name}/{group}"] = np.array([totals[label] for label in labels]) / counts
        return result


def since_switch(regimes: np.ndarray) -> np.ndarray:
    """Tokens since the regime `(B, T)` last changed, 0 at the first of the new one; -1 before, and from `LAGS` on."""
    index = np.arange(regimes.shape[1])
    changed = np.zeros(regimes.shape, dtype=bool)
    changed[:, 1:] = regimes[:, 1:] != regimes[:, :-1]
    last = np.maximum.accumulate(np.where(changed, index, -1), axis=1)
    age = index - last
    return np.where((last >= 0) & (age < LAGS), age, -1)
