"""Hidden Markov models: predict the next token, or track the state. Exact by the forward filter of `filters`.

    predict = "next":   target of position t is x_{t+1}; Bayes is P(x_{t+1} | x_0 .. x_t)
    predict = "state":  target of position t is the state after x_t; Bayes is P(state | x_0 .. x_t)

Models are named (`mess3`, `z1r`, `rrxor`, `parity`, `permutations`, `random`) or come from a `file`; the deterministic
ones make state tracking: with `predict = "state"` Bayes is at 0 nats. `probes.tasks.machines` defines them.

References: `window_w` starts from `P(state | x_edge)` on the stationary stream, which is the best from `w` tokens where
the sequence starts there; `unigram` (next tokens, models whose regimes hold bigram tables) replaces each table by its
stationary law; `chance` is level.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from filters import torch_backend
from filters.hmm import ModelError
from filters.stationary import stationary_law
from probes.task import IGNORED, Batch, Reference, Task, TaskError
from probes.tasks import machines
from probes.tasks.draws import on_device, uniforms
from probes.tasks.recall import Positive
from probes.tasks.settings import TaskSettings, read_settings, refuse

Model = Literal["mess3", "z1r", "rrxor", "parity", "permutations", "random", "file"]


class HiddenMarkovSettings(TaskSettings):
    """Dials of `hmm`; each belongs to the model named with it."""

    model: Model = "mess3"
    predict: Literal["next", "state"] = "next"
    length: int = Field(128, ge=2)
    burn_in: int = Field(0, ge=0)
    """Positions before this one are not scored."""
    alpha: float = Field(0.85, ge=0, le=1)
    """mess3: probability of the state's own token."""
    x: float = Field(0.05, ge=0, le=0.5)
    """mess3: probability of each change of state."""
    bias: float = Field(0.5, ge=0, le=1)
    """parity: probability of a one."""
    degree: int = Field(3, ge=2, le=5)
    """permutations: items arranged."""
    states: int = Field(4, ge=1)
    """random: states."""
    tokens: int = Field(4, ge=1)
    """random: tokens."""
    concentration: float = Field(0.3, gt=0)
    """random: of the Dirichlet distribution of each state's edges."""
    table_seed: int = Field(0, ge=0)
    """random: seed of the edges."""
    file: str | None = None
    """file: an .npz or .json with the model's tables."""
    file_digest: str | None = None
    """file: its SHA-256; filled in when the file is read, and checked where it is given."""
    windows: list[Positive] = Field([1, 8])
    extrapolate: list[Positive] = Field([])
    """Multiples of the length at which a trained model is also scored."""


class HiddenMarkov(Task):
    """See the module."""

    name = "hmm"
    version = 1

    def __init__(self, **settings: Any) -> None:
        dials = read_settings(HiddenMarkovSettings, self.name, settings)
        if dials.burn_in >= dials.length:
            refuse(self.name, "burn_in", dials.burn_in, "no position is left to score", dials.length - 1)
        if (dials.file is None) == (dials.model == "file"):
            refuse(self.name, "file", dials.file, f"model = {dials.model!r}", "a path" if dials.file is None else None)
        self.machine, digest = _machine(dials)
        if dials.file_digest not in (None, digest):
            refuse(self.name, "file_digest", dials.file_digest, f"{dials.file} holds another model", digest)
        dials = dials.model_copy(update={"file_digest": digest})
        self.chosen, self.settings = dials, dials.model_dump(mode="json")
        self.length = dials.length
        self.answers = self.machine.states if dials.predict == "state" else self.machine.hmm.vocab_size
        self.vocab_size = max(self.answers, self.machine.hmm.vocab_size)
        edges = torch.tensor(self.machine.edges).transpose(0, 1).flatten(1)
        self._ladder, self._start = _Ladder(edges), _Ladder(torch.tensor(self.machine.initial)[None])
        self._first = None if self.machine.first is None else torch.tensor(self.machine.first)

    def dials(self) -> dict[str, Any]:
        sizes = {"vocab_size": self.vocab_size, "states": self.machine.states, "regimes": self.machine.hmm.regimes}
        return {**self.settings, **sizes}

    def sample(self, generator: torch.Generator, batch_size: int) -> Batch:
        """Draws `(B, T + 2)` uniforms. Each picks an edge from every state; the walk is their running composition."""
        machine, device = self.machine, generator.device
        size = len(machine.initial)
        uniform = uniforms(generator, batch_size, self.length + 2)
        start = self._start.pick(0, uniform[:, 0])
        edge = torch.stack([self._ladder.pick(state, uniform[:, 1:]) for state in range(size)], 2)
        states = _walk(edge % size, start)
        emitted = edge.gather(2, states[:, :-1, None])[..., 0] // size
        if self._first is None:
            tokens, after = emitted[:, : self.length + 1], states[:, 1 : self.length + 2]
        else:
            tokens = torch.cat([on_device(self._first, device)[start][:, None], emitted], 1)
            tokens, after = tokens[:, : self.length + 1], states[:, : self.length + 1] // machine.hmm.vocab_size
        targets = (after[:, :-1] if self.chosen.predict == "state" else tokens[:, 1:]).clone()
        targets[:, : self.chosen.burn_in] = IGNORED
        return Batch(tokens[:, :-1].contiguous(), targets, {"state": after})

    def references(self) -> dict[str, Reference]:
        found: dict[str, Reference] = {"bayes": self._filtered(None)}
        for width in self.chosen.windows:
            found[f"window_{width}"] = self._filtered(width)
        if self.chosen.predict == "next" and self.machine.first is not None:
            found["unigram"] = Filtered(self, "unigram")
        return {**found, "chance": Level(self)}

    def window(self, width: int) -> Reference | None:
        """None where sequences do not start in the stationary law: a window that knows its place may then do better."""
        return self._filtered(width) if self.machine.stationary else None

    def _filtered(self, width: int | None) -> Reference:
        if self.machine.even:
            return Followed(self, width)
        if width is None:
            return Filtered(self, "forward")
        return Filtered(self, "window", width=width, edge="stationary")

    def beliefs(self, batch: Batch) -> dict[str, Tensor]:
        """`state`: the forward filter's law of the state after the token read."""
        if self.machine.even:
            return {"state": Followed(self, None).states_law(batch.tokens)[batch.scored]}
        return {"state": self.states_law(torch_backend.forward(self.machine.hmm, batch.tokens).posterior)[batch.scored]}

    def states_law(self, regimes_law: Tensor) -> Tensor:
        """The law of the states `(..., S)` from that of the regimes `(..., K)`."""
        onto = torch.zeros(self.machine.hmm.regimes, self.machine.states, dtype=torch.float64)
        onto[torch.arange(len(onto)), torch.tensor(self.machine.state)] = 1
        return regimes_law @ onto.to(regimes_law.device)

    def evaluations(self) -> dict[str, Task]:
        changes = [(factor, {"length": factor * self.length, "extrapolate": []}) for factor in self.chosen.extrapolate]
        return {f"length_x{factor}": HiddenMarkov(**{**self.settings, **change}) for factor, change in changes}


class Filtered(Reference):
    """One of the exact predictors of `filters.torch_backend`, of the next token or of the state."""

    def __init__(self, task: HiddenMarkov, predictor: str, **parameters: Any) -> None:
        self.task, self.parameters = task, parameters
        self.predict = getattr(torch_backend, predictor)

    def log_prob(self, batch: Batch) -> Tensor:
        table = torch.zeros(*batch.tokens.shape, dtype=torch.float64, device=batch.tokens.device)
        picked = self.log_predictive(batch).gather(1, batch.targets[batch.scored][:, None])[:, 0]
        table[batch.scored] = picked
        return table

    def log_predictive(self, batch: Batch) -> Tensor:
        hmm, burn_in = self.task.machine.hmm, self.task.chosen.burn_in
        if self.task.chosen.predict == "state":
            result = self.predict(hmm, batch.tokens, impossible="-inf", **self.parameters)
            law = self.task.states_law(result.posterior)[:, burn_in:]
        else:
            tokens = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
            result = self.predict(hmm, tokens, impossible="-inf", **self.parameters)
            positions = torch.arange(burn_in, self.task.length, device=tokens.device)
            law = torch_backend.predictive(hmm, tokens, result, positions)
        unused = self.task.vocab_size - law.shape[-1]
        return torch.nn.functional.pad(law.log(), (0, unused), value=-math.inf).flatten(0, 1)


class Followed(Reference):
    """The same predictors on the states themselves: `law_t = law_{t-1} @ edges[x_t]`, normalised.

    For models that are `Machine.even` (others could lose weights to underflow), where the number of edges, squared,
    would make the filter slow. `width`: from the stationary law before the last `width` tokens, None: from the start.
    """

    def __init__(self, task: HiddenMarkov, width: int | None) -> None:
        self.task, self.width = task, width

    def states_law(self, tokens: Tensor) -> Tensor:
        """`P(state | tokens up to t)`: `(B, T, S)`."""
        machine, device = self.task.machine, tokens.device
        edges = torch.tensor(machine.edges, device=device)
        start = torch.tensor(machine.initial, device=device).expand(len(tokens), -1)
        laws = []
        for place in range(tokens.shape[1]):
            start = _advance(start, tokens[:, place], edges)
            laws.append(start)
        whole = torch.stack(laws, 1)
        if self.width is None or self.width >= tokens.shape[1]:
            return whole
        ending = torch.tensor(stationary_law(machine.edges.sum(0), machine.initial), device=device)
        count = tokens.shape[1] - self.width
        law = ending.expand(len(tokens) * count, -1)
        for back in range(self.width):
            law = _advance(law, tokens[:, 1 + back : 1 + back + count].flatten(), edges)
        return torch.cat([whole[:, : self.width], law.view(len(tokens), count, -1)], 1)

    def log_prob(self, batch: Batch) -> Tensor:
        table = torch.zeros(*batch.tokens.shape, dtype=torch.float64, device=batch.tokens.device)
        table[batch.scored] = self.log_predictive(batch).gather(1, batch.targets[batch.scored][:, None])[:, 0]
        return table

    def log_predictive(self, batch: Batch) -> Tensor:
        law = self.states_law(batch.tokens)[batch.scored]
        if self.task.chosen.predict == "next":
            law = law @ torch.tensor(self.task.machine.edges.sum(2).T, device=law.device)
        unused = self.task.vocab_size - law.shape[-1]
        return torch.nn.functional.pad(law.log(), (0, unused), value=-math.inf)


class Level(Reference):
    """Uniform over the tokens, or the states, that occur as targets."""

    def __init__(self, task: HiddenMarkov) -> None:
        self.task = task

    def log_prob(self, batch: Batch) -> Tensor:
        return batch.scored.double() * -math.log(self.task.answers)

    def log_predictive(self, batch: Batch) -> Tensor:
        law = torch.full((self.task.vocab_size,), -math.inf, dtype=torch.float64, device=batch.tokens.device)
        law[: self.task.answers] = -math.log(self.task.answers)
        return law.expand(int(batch.scored.sum()), -1)


def _machine(dials: HiddenMarkovSettings) -> tuple[machines.Machine, str | None]:
    try:
        if dials.model == "file":
            return machines.read_file(str(dials.file))
    except (ModelError, OSError) as error:
        raise TaskError(f"hmm: file = {dials.file!r}: {error}; nearest valid is a file of tables") from None
    makers = {
        "mess3": lambda: machines.mess3(dials.alpha, dials.x),
        "z1r": machines.z1r,
        "rrxor": machines.rrxor,
        "parity": lambda: machines.parity(dials.bias),
        "permutations": lambda: machines.permutations(dials.degree),
        "random": lambda: machines.random_edges(dials.states, dials.tokens, dials.concentration, dials.table_seed),
    }
    return makers[dials.model](), None


def _advance(law: Tensor, tokens: Tensor, edges: Tensor) -> Tensor:
    """`law @ edges[token]`, normalised, row by row: `(n, S)`."""
    result = torch.empty_like(law)
    for token, edge in enumerate(edges):
        here = tokens == token
        result[here] = law[here] @ edge
    return result / result.sum(1, keepdim=True)


class _Ladder:
    """Distribution functions, one a row, to be inverted: `pick` never returns an index of probability 0."""

    def __init__(self, law: Tensor) -> None:
        rising = law.cumsum(1)
        self._rising = rising
        self._last = (rising < rising[:, -1:]).sum(1).tolist()
        self._top = rising[:, -1].tolist()

    def pick(self, row: int, uniform: Tensor) -> Tensor:
        """Indices for uniform numbers: `F(index - 1) <= u < F(index)`."""
        rising = on_device(self._rising, uniform.device)[row]
        level = (uniform * self._top[row]).contiguous()
        return torch.searchsorted(rising, level, right=True).clamp(max=self._last[row])


def _walk(maps: Tensor, start: Tensor) -> Tensor:
    """States `(B, L + 1)` of a walk from `start` `(B,)` whose steps are `maps` `(B, L, S)`, by doubling."""
    length, stride = maps.shape[1], 1
    while stride < length:
        maps = torch.cat([maps[:, :stride], maps[:, stride:].gather(2, maps[:, :-stride])], 1)
        stride *= 2
    return torch.cat([start[:, None], maps.gather(2, start[:, None, None].expand(-1, length, 1))[..., 0]], 1)
