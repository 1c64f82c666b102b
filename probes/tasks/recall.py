"""What the recall and copying tasks share: dials, answers inside a stream, references by restriction.

A batch of these tasks has *answers*, positions whose target a memory must supply (`latents["answers"]`, boolean
`(B, T)`). `supervise = "scored"` scores them alone. `supervise = "all"` scores every position: the others have the
next token of the stream as target, which costs what the exact predictor pays there. A restriction (window, slots,
chance) is one on the answers; at the other positions every reference predicts as Bayes does, so that differences
between references come from recall alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from probes.task import IGNORED, Batch, Reference, Task
from probes.tasks.bounds import StateBound
from probes.tasks.settings import TaskSettings, read_settings, refuse
from probes.tasks.spread import Spread

REPORTING = ("windows", "slots", "ngrams", "state_bits", "extrapolate")
"""Dials that choose references and evaluations; all others change the data."""


Positive = Annotated[int, Field(ge=1)]


class RecallSettings(TaskSettings):
    """Dials of every task of this kind."""

    supervise: Literal["scored", "all"] = "scored"
    windows: list[Positive] | None = None
    """Widths of the window references; None: a quarter and a half of the length."""
    slots: list[Positive] | None = None
    """Sizes of the slot references; None: a half and all of the load."""
    state_bits: list[Positive] = Field([])
    """States, in bits, whose bounds are reported."""
    extrapolate: list[Annotated[int, Field(ge=2)]] = Field([])
    """Multiples of the length at which a trained model is also scored."""


class Expectation(NamedTuple):
    """Means over the task's distribution, per answer: log-loss in nats, and accuracy of the likeliest token."""

    log_loss: float
    accuracy: float


class Load(NamedTuple):
    """What a memory must hold: `answers` tokens out of `choices` each, together one of `exp(log_count)` strings."""

    answers: int
    choices: int
    log_count: float


SettingsT = TypeVar("SettingsT", bound=RecallSettings)
AnswerRule = Callable[[Batch], Spread]


class AnswerReference(Reference):
    """A rule for the answers, `(answers in row-major order)` as a `Spread`, and Bayes at all other positions."""

    def __init__(self, task: RecallTask, rule: AnswerRule) -> None:
        self.task, self.rule = task, rule

    def log_prob(self, batch: Batch) -> Tensor:
        result = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.tokens.device)
        for place, spread in self._parts(batch):
            result[place] = spread.log_prob(batch.targets[place])
        return result

    def log_predictive(self, batch: Batch) -> Tensor:
        scored = batch.scored
        number = scored.flatten().cumsum(0).view_as(batch.targets) - 1
        shape = (int(scored.sum()), self.task.vocab_size)
        result = torch.empty(shape, dtype=torch.float64, device=batch.tokens.device)
        for place, spread in self._parts(batch):
            result[number[place]] = spread.dense(self.task.vocab_size)
        return result

    def _parts(self, batch: Batch) -> list[tuple[Tensor, Spread]]:
        answers = batch.latents["answers"]
        others = batch.scored & ~answers
        parts = [(answers, self.rule(batch))]
        return parts if not others.any() else [*parts, (others, self.task.stream(batch))]


class RecallTask(Task):
    """Base: strict dials, references assembled from `answer_*` rules, longer evaluations."""

    Dials: ClassVar[type[RecallSettings]]
    version = 1

    def __init__(self, **settings: Any) -> None:
        read = read_settings(self.Dials, self.name, settings)
        self.setup(read)
        if read.slots and not self.has_slots():
            refuse(self.name, "slots", read.slots, "there is nothing to keep in slots", [])
        if read.state_bits and self.load() is None:
            refuse(self.name, "state_bits", read.state_bits, "no bound is known for this task", [])
        changes = self.resolved()
        if read.windows is None:
            changes["windows"] = sorted({max(1, self.length // 4), max(1, self.length // 2)})
        if read.slots is None:
            changes["slots"] = sorted({max(1, self.capacity() // 2), self.capacity()}) if self.has_slots() else []
        self.chosen = read.model_copy(update=changes)
        self.settings = self.chosen.model_dump(mode="json")
        # made here, so that dials which no longer sequence can satisfy are an error before anything is sampled
        self._longer: dict[str, Task] = {
            f"length_x{factor}": type(self)(**{**self.stretched(factor), "extrapolate": []})
            for factor in read.extrapolate
        }

    @abstractmethod
    def setup(self, dials: Any) -> None:
        """Checks the dials against one another (`TaskError`) and sets `vocab_size`, `length` and what is derived."""

    def resolved(self) -> dict[str, Any]:
        """Dials left to be chosen (None), with what `setup` chose."""
        return {}

    @abstractmethod
    def capacity(self) -> int:
        """The pairs or tokens that a memory must hold to be perfect: the load in units of `slots(d)`."""

    @abstractmethod
    def bayes(self, batch: Batch) -> Spread:
        """The exact answers."""

    @abstractmethod
    def chance(self, batch: Batch) -> Spread:
        """The answers of a reader that has read nothing."""

    @abstractmethod
    def windowed(self, batch: Batch, width: int) -> Spread:
        """The best answers from the last `width` tokens, the current one included."""

    def kept(self, batch: Batch, slots: int) -> Spread | None:
        """The answers of a memory of the last `slots` pairs or tokens, level over what it has not kept."""
        return None

    @abstractmethod
    def stream(self, batch: Batch) -> Spread:
        """Exact distributions of the next token at scored positions that are no answers, in row-major order."""

    def load(self) -> Load | None:
        """What the bounds on a state are computed from; None where none is known."""
        return None

    def slot_bits(self) -> float:
        """Bits that one unit of the load takes (a pair, a token); 0 where a state has nothing to hold."""
        load = self.load()
        return 0.0 if load is None else math.log2(load.choices)

    def stretched(self, factor: int) -> dict[str, Any]:
        """The settings of the same task at `factor` times the length."""
        return {**self.settings, "length": factor * self.length}

    def expectations(self) -> dict[str, Expectation]:
        """Means of references in closed form or by quadrature, where there is one, by the references' names."""
        return {}

    def derived(self) -> dict[str, Any]:
        """What follows from the dials and is worth reporting."""
        return {}

    def dials(self) -> dict[str, Any]:
        bounds = {
            name: {"log_loss": bound.log_loss, "accuracy": bound.accuracy, "exact": bound.exact, "binds": bound.binds}
            for name, bound in self._bounds().items()
        }
        named = {"load": self.capacity(), **self.derived(), **({"bounds": bounds} if bounds else {})}
        return {**self.settings, "vocab_size": self.vocab_size, "length": self.length, **named}

    def references(self) -> dict[str, Reference]:
        chosen = self.chosen
        rules: dict[str, AnswerRule] = {"bayes": self.bayes}
        for width in chosen.windows or []:
            rules[f"window_{width}"] = _bind(self.windowed, width)
        for slots in chosen.slots or []:
            rules[f"slots_{slots}"] = cast(AnswerRule, _bind(self.kept, slots))
        rules |= self.further_rules()
        rules["chance"] = self.chance
        found: dict[str, Reference] = {name: AnswerReference(self, rule) for name, rule in rules.items()}
        return {**found, **self._bounds()}

    def window(self, width: int) -> Reference | None:
        return AnswerReference(self, _bind(self.windowed, width))

    def further_rules(self) -> Mapping[str, AnswerRule]:
        """References beyond windows, slots and chance."""
        return {}

    def has_slots(self) -> bool:
        """Whether `kept` is defined."""
        return type(self).kept is not RecallTask.kept

    def evaluations(self) -> dict[str, Task]:
        return self._longer

    def _bounds(self) -> dict[str, StateBound]:
        load = self.load()
        if load is None:
            return {}
        return {f"state_{bits}_bits": StateBound(bits, *_bound_inputs(load)) for bits in self.chosen.state_bits}

    def finish(
        self, tokens: Tensor, answers: Tensor, values: Tensor, latents: dict[str, Tensor], slices: dict[str, Tensor]
    ) -> Batch:
        """A batch from a stream of `T + 1` tokens, `(B, T)` answer positions and their values.

        `slices` are labels at the answers; elsewhere they become -1. The stream's last token, which no model reads,
        is kept as the latent `last`.
        """
        everything = self.chosen.supervise == "all"
        targets = torch.where(answers, values, tokens[:, 1:] if everything else IGNORED)
        labels = {name: torch.where(answers, label, -1) for name, label in slices.items()}
        if everything:
            labels["answer"] = answers.long()
        latents = {"answers": answers, **latents, "last": tokens[:, -1:]}
        return Batch(tokens[:, :-1].contiguous(), targets, latents, labels)


def octave(gap: Tensor) -> Tensor:
    """`floor(log2(gap))` of positive int64 numbers: 1 is 0, 2 and 3 are 1, 4 to 7 are 2."""
    return torch.frexp(gap.double())[1].long() - 1


def _bind(rule: Callable[[Batch, int], Any], number: int) -> Callable[[Batch], Any]:
    return lambda batch: rule(batch, number)


def _bound_inputs(load: Load) -> tuple[int, float, int]:
    return load.answers, load.log_count, load.choices
