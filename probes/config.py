"""The plain-data settings of a trial, strict: an unknown key is an error.

A trial is its resolved task (with version), its resolved architecture spec, its training recipe and its seeds; the
hash of these four is its identity (`Trial.identity`). Where and how it ran is recorded beside it, never hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Strict(BaseModel):
    """Frozen; rejects unknown keys and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Training(Strict):
    """The training recipe: fresh batches, AdamW, linear warm-up, then cosine to `final_lr` times the peak."""

    steps: int = Field(2000, ge=1)
    batch_size: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    warmup: int = Field(100, ge=0)
    """Steps of linear warm-up."""
    final_lr: float = Field(0.1, ge=0, le=1)
    """The last step's learning rate as a fraction of the peak."""
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    supervision: Literal["scored", "all"] = "scored"
    """`scored`: loss at the task's scored positions; `all`: at every position that has a next token."""
    examples: int | None = Field(None, ge=1)
    """Size of a finite training set; None draws fresh sequences for ever."""
    control: dict[str, Any] = {}
    """Named schedules for the architecture's control tensors in training (an Oryx mode schedule, ...)."""
    evaluations: int = Field(10, ge=1)
    """How often the validation split is scored in the course of training, evenly spaced, the end included."""

    def beyond_end(self, keys: Iterable[str] = ("warmup", "evaluations")) -> tuple[str, str] | None:
        """Which of `keys` was given a value that the steps cannot hold, and what is wrong with it; None where all fit.

        A default that is longer than the training is cut off by its end.
        """
        for key in keys:
            value = getattr(self, key)
            if key in self.model_fields_set and value > self.steps:
                return key, f"train.{key} = {value} is above train.steps = {self.steps}; nearest: {self.steps}"
        return None


class Evaluation(Strict):
    """How much is scored. Sequences are drawn on the CPU in blocks of 256."""

    validation_sequences: int = Field(512, ge=2)
    test_sequences: int = Field(2048, ge=2)
    batch_size: int = Field(256, ge=1)
    readout_positions: int = Field(8192, ge=0)
    """Scored positions for fitting, and for testing, the probes of each layer (`probes.readouts`); 0: no probes."""
    control: dict[str, Any] = {}
    """Schedules of the control tensors under which the headline score is taken."""
    variants: dict[str, dict[str, Any]] = {}
    """Further controls under which the trained model is scored on the same sequences, by name. The entry `trigger` of
    one is no tensor: an AMOR model fires as it says (`probes.triggers`), and a model without gates leaves it out."""


class Seeds(Strict):
    """`data_seed`: the streams of all splits. `model_seed`: initialisation. Tables have the task's `table_seed`."""

    data_seed: int = Field(0, ge=0, lt=2**63)
    model_seed: int = Field(0, ge=0, lt=2**63)


class Trial(Strict):
    """Everything that fixes a trial's numbers, resolved, as plain data."""

    task: dict[str, Any]
    """`{"name", "version", "settings"}`"""
    architecture: dict[str, Any]
    """The resolved spec, `vocab_size` included."""
    train: Training
    evaluate: Evaluation
    seeds: Seeds
    sources: dict[str, str] = {}
    """SHA-256 of the source file of each plug-in, by its name: an edited plug-in is another trial."""

    def identity(self) -> str:
        """SHA-256 over the canonical JSON of all fields, `sources` only where there are any; 64 hex digits."""
        fields = self.model_dump(mode="json", exclude=None if self.sources else {"sources"})
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Suite(Strict):
    """A named sweep: every task with every architecture, over a grid and seeds.

    `learning_rates` is searched per (task, architecture, grid point) on the first seed; the one with the best
    validation loss is used for the remaining seeds. `grid` holds axes of dials, keyed as in `--set`
    (`task.overlap`, `arch.d_model`, `train.steps`), whose cross product is swept.
    """

    description: str = ""
    tasks: list[str] = Field(min_length=1)
    architectures: list[str] = Field(min_length=1)
    train: dict[str, Any] = {}
    evaluate: dict[str, Any] = {}
    task: dict[str, Any] = {}
    """Dials set on every task of the suite."""
    arch: dict[str, Any] = {}
    """Dials set on every architecture of the suite."""
    learning_rates: list[float] = Field(min_length=1)
    grid: dict[str, list[Any]] = {}
    seeds: list[int] = Field(default=[0], min_length=1)
    smoke: bool = False
    """A smoke suite may search fewer than four learning rates."""
    match: Literal["parameters", "state_bytes", "forward_flops"] | None = None
    """What the models of one task are matched in, to the first architecture's value; None: as specified."""

    def contradiction(self) -> tuple[tuple[str, ...], str] | None:
        """The path of a dial that the suite sets in two places, and what is wrong with it; None where there is none."""
        rates = ", ".join(f"{rate:g}" for rate in self.learning_rates)
        searched = f"which learning_rates ({rates}) searches; leave out one of the two"
        if "lr" in self.train:
            return ("train", "lr"), f"train.lr = {self.train['lr']!r} sets the learning rate, {searched}"
        if "train.lr" in self.grid:
            return ("grid", "train.lr"), f"grid has train.lr, {searched}"
        if "seeds.model_seed" in self.grid and len(self.seeds) > 1:
            seeds = ", ".join(map(str, self.seeds))
            text = f"grid has seeds.model_seed, which seeds ({seeds}) sets too; leave out one of the two"
            return ("grid", "seeds.model_seed"), text
        return None

    @field_validator("tasks", "architectures", "learning_rates", "seeds")
    @classmethod
    def _unique(cls, values: list[Any]) -> list[Any]:
        for index, value in enumerate(values):
            if value in values[:index]:
                raise ValueError(f"{value!r} is listed twice")
        return values

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, values: list[int]) -> list[int]:
        for value in values:
            if not 0 <= value < 2**63:
                raise ValueError(f"seed {value} is outside 0..2^63 - 1")
        return values
