"""Fast decoding of a built model: a token as one CUDA graph over caches that exist already.

    decoder = Decoder(model, state)              # the state after a prefill; its tensors are the decoder's from then on
    tokens = decoder.generate(first, 32)         # greedy, (B, 32); nothing waits for the device

Nothing in a step depends on the host: the position is a tensor, attention reads the filled part of its cache only, a
gate's skip is taken by the kernels themselves, and the next token is chosen where its logits are. Without CUDA the same
step runs in plain torch.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, section 3.5 (what a shut gate skips).
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..amor import Amor, AmorBlock
from ..errors import SpecError, unknown
from ..mixers.base import state_tensors
from ..stack import Block, Stack
from .amor import Gates, attention_step, head_weight
from .plain import Norm
from .steps import Desk, Step, hand_back, mixer_step, mlp_step, norm_of

Backend = Literal["auto", "plain", "triton"]


def load_ops(backend: str, device: torch.device) -> ModuleType:
    """The operations of a backend; `auto` takes Triton's on a GPU that has it. Raises `SpecError`."""
    if backend not in ("auto", "plain", "triton"):
        raise unknown("backend", backend, ["auto", "plain", "triton"])
    if backend == "auto":
        backend = "triton" if device.type == "cuda" else "plain"
    if backend == "triton" and importlib.util.find_spec("triton") is None:
        raise SpecError("backend: 'triton' needs the package 'triton'; nearest: 'plain'")
    return importlib.import_module(f"architectures.decoding.{'triton_ops' if backend == 'triton' else 'plain'}")


class Decoder:
    """Decodes `model` (a stack, AMOR or Oryx) after `state`, which it takes over; `mode` is Oryx's.

    Weights are read where they are. What is derived from them is read once: AMOR's alpha and thresholds; Oryx's maps of
    one input are laid out side by side and become views. `graph`: None captures one on a GPU. Raises `SpecError` for a
    layer, trigger or head without a step.
    """

    def __init__(
        self,
        model: nn.Module,
        state: dict[str, Any],
        *,
        mode: str = "attention",
        backend: Backend = "auto",
        graph: bool | None = None,
    ) -> None:
        if not isinstance(model, (Stack, Amor)):
            raise SpecError(f"decoding: {type(model).__name__} is neither a stack nor built around one")
        stack = model.backbone if isinstance(model, Amor) else model
        weight = stack.embedding.weight
        self.state, self.seen = state, int(state["position"])
        self.batch = self._batch(state)
        self.room = int(state["max_length"])
        self.position = torch.full((1,), self.seen, dtype=torch.int64, device=weight.device)
        self.token = torch.zeros(self.batch, dtype=torch.int64, device=weight.device)
        self.tokens = torch.zeros(self.batch, self.room + 1, dtype=torch.int64, device=weight.device)
        """The token at each position, as far as this decoder has chosen it."""
        self.logits = torch.zeros(self.batch, len(head_weight(stack.readout, stack.embedding)), **_like(weight))
        self.x = torch.zeros(self.batch, stack.spec["d_model"], **_like(weight))
        if self.seen >= self.room:
            raise ValueError(
                f"max_length: the state has room for {self.room} tokens and holds them; nearest: {self.room + 1}"
            )
        self.embedding, self.head = weight.detach(), head_weight(stack.readout, stack.embedding)
        self.desk = Desk(load_ops(backend, weight.device), self.batch, self.position, weight.dtype)
        self.gates: list[Gates] = []
        self.steps: list[Step] = []
        with torch.no_grad():
            self._build(stack, model, mode)
        self.replay: torch.cuda.CUDAGraph | None = None
        if graph if graph is not None else weight.is_cuda:
            self._capture()

    @staticmethod
    def _batch(state: dict[str, Any]) -> int:
        tensors = state_tensors(state["layers"])
        if not tensors:
            raise SpecError("decoding: no layer of the model has a state")
        return len(tensors[0])

    def _build(self, stack: Stack, model: nn.Module, mode: str) -> None:
        for index, block in enumerate(stack.blocks):
            block = cast(Block, block)
            self.steps.append(
                mixer_step(self.desk, block.mixer, block.norm, self.state["layers"][index], self.seen, mode)
            )
            self.steps.append(mlp_step(self.desk, cast(Any, block.mlp), block.mlp_norm))
        self.final = norm_of(stack.norm)
        if isinstance(model, Amor):
            self._build_blocks(model, self.final)

    def _build_blocks(self, model: Amor, before: Norm) -> None:
        if not model.blocks or model.norm is None:
            raise SpecError(f"decoding: placement {model.spec['placement']!r} has no fused step; nearest: 'post'")
        if asymmetric := model.spec["layout"] == "asymmetric":
            self.steps.append(lambda x: self.desk.ops.normed(x, before, x))
        for number, block in enumerate(model.blocks):
            block = cast(AmorBlock, block)
            norm = None if asymmetric else before
            if block.norm is not None:
                norm = norm_of(block.norm)
            self.gates.append(Gates(self.desk))
            state = self.state["blocks"][number]
            self.steps.append(attention_step(self.desk, block.attention, self.head, norm, state, self.gates[-1]))
            self.steps.append(mlp_step(self.desk, block.mlp, block.mlp_norm))
        self.final = norm_of(model.norm)

    @torch.no_grad()
    def _step(self) -> None:
        self.desk.turn()
        torch.index_select(self.embedding, 0, self.token, out=self.x)
        for step in self.steps:
            step(self.x)
        self.desk.ops.project(self.x, self.head, self.logits, norm=self.final)
        self.desk.ops.choose(self.logits, self.token)
        self.position.add_(1)
        self.tokens.index_copy_(1, self.position, self.token[:, None])

    def _capture(self) -> None:
        """Runs a step twice to compile its kernels, puts back what it changed, and records it."""
        kept = [(tensor, tensor.clone()) for tensor in self._moving()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
                self.position.fill_(self.seen)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.replay = graph
        for tensor, before in kept:
            tensor.copy_(before)

    def _moving(self) -> list[Tensor]:
        """What a step changes, caches of keys and values excepted: their new slots are written again."""
        caches = (*self.state["layers"], *self.state.get("blocks", ()))
        moving = [tensor for layer in caches for tensor in _recurrent(layer)]
        return [*moving, self.position, self.token, *(gates.count for gates in self.gates)]

    def step(self, token: Tensor) -> Tensor:
        """Logits `(B, V)` after `token (B,)`; the same tensor at every call. ValueError where the room is used up."""
        self.token.copy_(token)
        self._advance(1)
        return self.logits

    def generate(self, token: Tensor, count: int) -> Tensor:
        """The `count` tokens `(B, count)` that greedily follow `token (B,)`. ValueError where the room is used up."""
        self.token.copy_(token)
        start = self.seen + 1
        self._advance(count)
        return self.tokens[:, start : start + count]

    def _advance(self, count: int) -> None:
        if self.seen + count > self.room:
            raise ValueError(
                f"max_length: the state has room for {self.room} tokens, {self.seen + count} were asked for"
            )
        for _ in range(count):
            if self.replay is None:
                self._step()
            else:
                self.replay.replay()
        self.seen += count

    def release(self) -> dict[str, Any]:
        """The state as the model's own `prefill` and `step` take it, all decoded tokens in; the decoder is used up."""
        for layer in (*self.state["layers"], *self.state.get("blocks", ())):
            hand_back(layer, self.seen)
        self.state["position"] = self.seen
        self.steps, self.replay = [], None
        return self.state

    @property
    def state_bytes(self) -> int:
        """Bytes of keys, values, convolution and recurrent states, as held."""
        return sum(tensor.nbytes for tensor in state_tensors([self.state["layers"], self.state.get("blocks", [])]))

    def firing_rates(self, tokens: int) -> list[float]:
        """Each block's firing rate over the `tokens` tokens since the gates were reset; waits for the device."""
        return [float(gates.count.sum()) / (tokens * self.batch) for gates in self.gates]

    def reset_gates(self) -> None:
        """Starts the gates' counts again."""
        for gates in self.gates:
            gates.reset()


def _like(weight: Tensor) -> dict[str, Any]:
    return {"device": weight.device, "dtype": weight.dtype}


def _recurrent(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [tensor for name, value in state.items() if name not in ("k", "v") for tensor in _recurrent(value)]
    return [state] if isinstance(state, Tensor) else []
