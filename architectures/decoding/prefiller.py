"""Prefill without launching every kernel of every chunk: layers without a cache are CUDA graphs, replayed a chunk each.

    prefill = Prefiller(model, batch=1, chunk=4096)
    logits, state = prefill(tokens, model.init_state(1, 131_200))

A recurrent layer does to each chunk what it did to the one before, at the same addresses once its state stays where it
is; so a row of them is recorded once and replayed. Layers with a cache of keys and values see a longer past each time,
and AMOR's firing positions are known only once they are scored: both run as ever, between the graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..amor import Amor
from ..context import Context
from ..errors import SpecError
from ..layers import embed
from ..mixers.base import Mixer, State
from ..mixers.gated_delta import GatedDeltaNet
from ..mixers.mamba2 import Mamba2
from ..oryx import Oryx
from ..stack import Block, Stack
from .prefill import CHUNK, prefill

REPLAYED: tuple[type[Mixer], ...] = (Mamba2, GatedDeltaNet)
"""Mixers whose work on a chunk does not depend on its position."""


class Run:
    """Consecutive layers `first` to `stop - 1` on one chunk: reads and writes the buffer `x (B, T, D)`.

    Their states stay in tensors of the run's own, so that a graph finds them; `load` and `store` copy them.
    """

    def __init__(self, blocks: list[Block], first: int, x: Tensor) -> None:
        self.blocks, self.first, self.stop, self.x = blocks, first, first + len(blocks), x
        self.states: list[State] = [
            block.mixer.init_state(len(x), 1, device=x.device, dtype=x.dtype) for block in blocks
        ]
        self.graph: torch.cuda.CUDAGraph | None = None

    def _advance(self) -> None:
        x, context = self.x, Context()
        for block, state in zip(self.blocks, self.states, strict=True):
            x, after = block.prefill(x, dict(state), context)
            for name, kept in state.items():
                kept.copy_(after[name])
        self.x.copy_(x)

    def record(self, pool: Any) -> None:
        """Records the graph, after one run that compiles and tunes its kernels."""
        self.x.normal_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._advance()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._advance()
        self.graph = graph

    def __call__(self, x: Tensor) -> Tensor:
        """The residual stream after the layers; the run's buffer, overwritten by the next call of any run."""
        if x is not self.x:
            self.x.copy_(x)
        if self.graph is None:
            self._advance()
        else:
            self.graph.replay()
        return self.x

    def load(self, layers: list[Any]) -> None:
        """Takes the states of a model's decoding state."""
        for own, given in zip(self.states, layers[self.first : self.stop], strict=True):
            for name, kept in own.items():
                kept.copy_(given[name])

    def store(self, layers: list[Any]) -> None:
        """Gives them back, into the same tensors."""
        for own, given in zip(self.states, layers[self.first : self.stop], strict=True):
            for name, kept in own.items():
                given[name].copy_(kept)


class Prefiller:
    """`prefill` for `batch` sequences in chunks of `chunk` tokens, for any number of prompts.

    Whole chunks go through the graphs, a rest at the end through the model's own `prefill`. A model without a row of
    recurrent layers (a Transformer, Oryx) has no graph, and is prefilled as `prefill` does. `graph`: None records on a
    GPU; without, the same path runs layer by layer. Raises `SpecError` for a model that is neither a stack nor AMOR,
    ValueError for a chunk or a batch below 1.
    """

    @torch.no_grad()
    def __init__(
        self, model: nn.Module, batch: int = 1, chunk: int = CHUNK, *, graph: bool | None = None, least: int = 2
    ) -> None:
        """`least`: layers in a row that are worth a graph."""
        if not isinstance(model, (Stack, Amor)):
            raise SpecError(f"prefill: {type(model).__name__} is neither a stack nor built around one")
        for name, value in (("batch", batch), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name}: {value}; nearest: 1")
        self.model, self.batch, self.chunk, self.graph = model, batch, chunk, graph is not False
        self.stack = model.backbone if isinstance(model, Amor) else model
        weight = self.stack.embedding.weight
        rows = _rows(self.stack, least)
        self.runs: list[Run] = []
        self.pool_bytes = 0
        """Bytes that the graphs hold for what passes between their kernels; no other tensor is counted in them."""
        if not rows:
            return
        x = torch.zeros(batch, chunk, self.stack.spec["d_model"], device=weight.device, dtype=weight.dtype)
        self.runs = [Run(blocks, first, x) for first, blocks in rows]
        if weight.is_cuda if graph is None else graph:
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(weight.device)
            pool = torch.cuda.graph_pool_handle()
            for run in self.runs:
                run.record(pool)
            torch.cuda.synchronize(weight.device)
            torch.cuda.empty_cache()
            self.pool_bytes = max(0, torch.cuda.memory_reserved(weight.device) - before)

    @property
    def replayed(self) -> int:
        """Layers that run within a graph."""
        return sum(len(run.blocks) for run in self.runs if run.graph is not None)

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, state: dict[str, Any], *, control: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """As `prefill`: logits `(B, V)` after the last of `tokens (B, T)`, and the state, whose tensors stay its own.

        ValueError for another number of sequences, for no tokens, and beyond the state's room.
        """
        whole = tokens.shape[1] - tokens.shape[1] % self.chunk
        if not self.runs or not whole:
            return prefill(self.model, tokens, state, chunk=self.chunk, control=control)
        if len(tokens) != self.batch:
            raise ValueError(f"tokens: {len(tokens)} sequences, this prefill was made for {self.batch}")
        room, stop = state["max_length"], state["position"] + tokens.shape[1]
        if stop > room:
            raise ValueError(f"max_length: the state has room for {room} tokens, {stop} were given")
        for run in self.runs:
            run.load(state["layers"])
        for start in range(0, whole, self.chunk):
            span = slice(start, start + self.chunk)
            part = {name: value[:, span] for name, value in (control or {}).items()}
            logits = self._advance(tokens[:, span], state, part)
        for run in self.runs:
            run.store(state["layers"])
        if whole < tokens.shape[1]:
            rest = {name: value[:, whole:] for name, value in (control or {}).items()}
            return prefill(self.model, tokens[:, whole:], state, chunk=self.chunk, control=rest)
        return logits, state

    def _advance(self, tokens: Tensor, state: dict[str, Any], control: Mapping[str, Tensor]) -> Tensor:
        """One chunk: the logits after its last token."""
        model, stack = self.model, self.stack
        context = Context(control=control, head=model.head)
        if isinstance(model, Amor):
            context.extras["skips"] = state["skips"]
        runs = {run.first: run for run in self.runs}
        x, index = embed(stack.embedding.weight, tokens), 0
        while index < len(stack.blocks):
            if index in runs:
                x, index = runs[index](x), runs[index].stop
            else:
                block = cast(Block, stack.blocks[index])
                x, state["layers"][index] = block.prefill(x, state["layers"][index], context)
                index += 1
        state["position"] += tokens.shape[1]
        if isinstance(model, Amor):
            return model.finish(model.refine(x, context, state["blocks"])[:, -1])
        return stack.head(stack.norm(x[:, -1]))


def _rows(stack: Stack, least: int) -> list[tuple[int, list[Block]]]:
    """The rows of layers that a graph can hold, each with its first layer's index."""
    if isinstance(stack, Oryx) or stack.position_head is not None:
        return []
    found: list[tuple[int, list[Block]]] = []
    for index, block in enumerate(cast(list[Block], list(stack.blocks))):
        if type(block.mixer) not in REPLAYED or block.mixer.stream is not None:
            continue
        if found and found[-1][0] + len(found[-1][1]) == index:
            found[-1][1].append(block)
        else:
            found.append((index, [block]))
    return [(first, blocks) for first, blocks in found if len(blocks) >= least]
