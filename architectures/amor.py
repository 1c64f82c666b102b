"""AMOR: a complete recurrent language model, then K attention blocks that fire where it is uncertain.

    x = norm_f(backbone(tokens))
    x <- x + g alpha * attention(h~), h~ = x in block 0, norm_k(x) after
    logits = head(norm(x))

In the symmetric layout `x` is the backbone's residual, `norm_f` block 0's pre-norm. Serial and fused placement put the
same gated attention into the backbone: instead of some layers' mixers, or beside them.

Shapes: `B` sequences, `T` tokens, `D = d_model`, `V` the vocabulary.

Reference: Zheng & Shani, AMOR, arXiv 2602.13215, section 3; ablations: appendix H.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from .amor_attention import Beside, GatedAttention, Mode, Skips
from .amor_spec import backbone, resolve_trigger
from .amor_trigger import Trigger, make_trigger
from .context import Context, Output
from .initialise import initialise
from .kernels import Kernels
from .layers import RMSNorm
from .mixers.mlp import SwiGLU
from .stack import Stack, State, select


class AmorBlock(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(mlp_norm(x))` in the ablation that has one; block 0 has no norm.

    A block without a norm reads what it is given as already normalised.
    """

    def __init__(self, spec: Mapping[str, Any], number: int) -> None:
        super().__init__()
        d_model, eps = spec["d_model"], spec["norm_eps"]
        self.norm = RMSNorm(d_model, eps) if number else None
        self.attention = GatedAttention(spec, number)
        self.mlp_norm = RMSNorm(d_model, eps) if spec["mlp"] else None
        self.mlp = SwiGLU(d_model, d_ff=spec["d_ff"]) if spec["mlp"] else None
        if self.mlp is not None:
            initialise(self.mlp, spec["init_std"])

    def forward(
        self, x: Tensor, context: Context, state: Any = None, features: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The residual `(B, T, D)` after the block, and its cache. `features`: what block 0 reads, by default `x`."""
        if self.norm is not None:
            features = self.norm(x)
        update, state = self.attention.mix(x if features is None else features, state, context)
        x = x + update
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.mlp(self.mlp_norm(x))
        return x, state


class Amor(nn.Module):
    """A model built from a resolved spec of kind `amor`; decodes as a stack does.

    `mode` chooses the form of whole sequences: `dense`, or `sparse`, which gathers the firing positions. The decoding
    state's `skips` counts what the gates saved. `extras["fields"]` of a forward pass has `gate.K.fire` and
    `gate.K.score`, `(B, T)` each; `extras["metrics"]` has scalars: each block's firing rate over all positions (`rate`)
    and over the positions that were asked for (`rate_scored`), `mu`, `sigma`, `tau`, and the mean of `alpha`.
    """

    def __init__(self, spec: Mapping[str, Any], kernels: Kernels = "auto") -> None:
        super().__init__()
        self.spec = dict(spec)
        self.backbone = Stack(backbone(spec), kernels)
        self.blocks = nn.ModuleList()
        self.norm: RMSNorm | None = None
        if spec["placement"] == "post":
            self.blocks.extend(AmorBlock(spec, number) for number in range(spec["blocks"]))
            self.norm = RMSNorm(spec["d_model"], spec["norm_eps"])
        for number, layer in enumerate(spec["at"]):
            attention, block = GatedAttention(spec, number), self.backbone.blocks[layer]
            block.mixer = attention if spec["placement"] == "serial" else Beside(block.mixer, attention)

    @property
    def kernels_used(self) -> dict[str, str]:
        """The backend of each operation that has run, by operation."""
        return self.backbone.kernels_used

    @property
    def attentions(self) -> list[GatedAttention]:
        """The gated attentions in order."""
        return [module for module in self.modules() if isinstance(module, GatedAttention)]

    @property
    def mode(self) -> Mode:
        """The form of whole sequences; to be set to `dense` or `sparse`."""
        return self.attentions[0].mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in ("dense", "sparse"):
            raise ValueError(f"mode: {mode!r} is neither 'dense' nor 'sparse'")
        for attention in self.attentions:
            attention.mode = mode

    def head(self, features: Tensor) -> Tensor:
        """Logits `(..., V)` of normalised features `(..., D)`: the backbone's own head."""
        return self.backbone.head(features)

    def refine(
        self, x: Tensor, context: Context, states: list[Any] | None = None, collected: list[Tensor] | None = None
    ) -> Tensor:
        """The blocks on the backbone's last residual `(B, T, D)`: what the final norm reads.

        `states`: the blocks' caches, moved on; `collected`: takes the residual after each block.
        """
        if not self.blocks:
            return x
        features = self.backbone.norm(x)
        if self.spec["layout"] == "asymmetric":
            x = features
        for number, block in enumerate(self.blocks):
            state = None if states is None else states[number]
            x, state = block(x, context, state, features if number == 0 else None)
            if states is not None:
                states[number] = state
            if collected is not None:
                collected.append(x)
        return x

    def finish(self, x: Tensor) -> Tensor:
        """Logits of the last residual `(..., D)`."""
        return self.head((self.backbone.norm if self.norm is None else self.norm)(x))

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        control: Mapping[str, Tensor] | None = None,
        features: bool = False,
    ) -> Output:
        """Logits for `tokens (B, T)`, as `Stack.forward`; with `features` the residual after each AMOR block too."""
        context = Context(control=control or {}, head=self.head)
        collected: list[Tensor] | None = [] if features else None
        x = self.refine(self.backbone.backbone(tokens, context, collected), context, None, collected)
        _summarise(context.extras, positions)
        if collected is not None:
            norm = self.backbone.norm if self.norm is None else self.norm
            context.extras["features"] = (*collected, norm(x))
        return Output(self.finish(select(x, positions)), context.extras)

    def init_state(
        self,
        batch_size: int,
        max_length: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first token, as `Stack.init_state`, with the blocks' caches and the skips counted."""
        state = self.backbone.init_state(batch_size, max_length, device=device, dtype=dtype)
        weight = self.backbone.embedding.weight
        device, dtype = torch.device(device or weight.device), dtype or weight.dtype
        state["blocks"] = [
            cast(AmorBlock, block).attention.init_state(batch_size, max_length, device=device, dtype=dtype)
            for block in self.blocks
        ]
        state["skips"] = Skips(device)
        return state

    def prefill(
        self,
        tokens: Tensor,
        state: State,
        *,
        logits: Literal["last", "all"] = "last",
        control: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """The next `tokens (B, T)` of a sequence, as `Stack.prefill`.

        Raises `ValueError` beyond `max_length`, and for the logits after the last of no tokens.
        """
        if not tokens.shape[1]:
            return self.backbone.no_logits(tokens, logits), state
        context = Context(control=control or {}, head=self.head, extras={"skips": state["skips"]})
        x = self.refine(self.backbone.advance(tokens, state, context), context, state["blocks"])
        return self.finish(x[:, -1] if logits == "last" else x), state

    def step(self, token: Tensor, state: State, *, control: Mapping[str, Tensor] | None = None) -> tuple[Tensor, State]:
        """The next `token (B,)` of a sequence: logits `(B, V)` and the new state. `control`: named `(B,)` tensors."""
        control = {name: value[:, None] for name, value in (control or {}).items()}
        return self.prefill(token[:, None], state, control=control)

    @contextmanager
    def triggered(self, triggers: list[Trigger]) -> Iterator[None]:
        """Within this block the gates are `triggers`, one for each attention; the model's own come back afterwards."""
        attentions = self.attentions
        own = [attention.trigger for attention in attentions]
        try:
            for attention, trigger in zip(attentions, triggers, strict=True):
                attention.trigger = trigger
            yield
        finally:
            for attention, trigger in zip(attentions, own, strict=True):
                attention.trigger = trigger

    def make_triggers(self, trigger: str | Mapping[str, Any]) -> list[Trigger]:
        """A trigger for each attention, on the model's device and in its mode. Raises `SpecError`."""
        params = resolve_trigger(trigger, self.spec["d_model"])
        device = self.backbone.embedding.weight.device
        made = [
            make_trigger(params, self.spec["d_model"], self.spec["vocab_size"], attention.number)
            for attention in self.attentions
        ]
        return [trigger.to(device).train(self.training) for trigger in made]


def _summarise(extras: dict[str, Any], positions: Tensor | None) -> None:
    """Firing rates over the positions asked for, and the mean over blocks, into the metrics."""
    metrics, fields = extras["metrics"], extras["fields"]
    fires = {name: field for name, field in fields.items() if name.endswith(".fire")}
    for name, fire in fires.items():
        if positions is None:
            scored = fire.float().mean()
        elif positions.dtype == torch.bool:
            scored = (fire & positions).sum() / positions.sum().clamp(min=1)
        else:
            scored = fire.flatten()[positions].float().mean()
        metrics[name.replace(".fire", ".rate_scored")] = scored
    for kind in ("rate", "rate_scored"):
        metrics[f"gate.{kind}"] = torch.stack([metrics[name.replace("fire", kind)] for name in fires]).mean()
