"""Before anything is timed: decoding's tokens are the full forward pass's, and its caches have the counted bytes."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch

from architectures import accounting
from architectures.decoding import Decoder, prefill
from probes.inference.models import Case, control, make, settle

PROMPT, TOKENS = 40, 64


@dataclass(frozen=True)
class Agreement:
    """How one model's greedy tokens compare with the full forward pass over them.

    The full pass over prompt and tokens has the same greedy choice at every position if and only if token by token full
    passes would have chosen the same tokens.
    """

    model: str
    dtype: str
    tokens: int
    equal: int
    shortfall: float
    """The most by which a chosen token's logit lies under the largest one of the full pass; 0 where all are equal."""
    rounding: float
    """The most by which the full pass in half precision differs from the same weights in float32, in any logit; 0 in
    float32."""
    firing_rates: list[float]
    state_bytes: int
    counted_bytes: int

    @property
    def agrees(self) -> bool:
        """All tokens equal in float32; in half precision none that the full pass puts lower than rounding explains.

        With logits that either pass rounds by up to r, the token that decoding chose may lie 4 r under the full pass's
        largest; half of that is let through.
        """
        bytes_agree = self.state_bytes == self.counted_bytes
        same = self.equal == self.tokens if self.dtype == "float32" else self.shortfall <= 2 * self.rounding
        return bytes_agree and same

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "agrees": self.agrees}


@torch.no_grad()
def compare(case: Case, device: torch.device, dtype: torch.dtype, *, spec: dict[str, Any] | None = None) -> Agreement:
    """Decodes 64 tokens greedily after a prompt, and runs the full forward pass over all of them."""
    spec = case.spec if spec is None else spec
    model = make(spec, device, dtype, kernels="chunked" if dtype == torch.float32 else "auto")
    prompt = torch.randint(spec["vocab_size"], (1, PROMPT), device=device)
    settle(model, prompt)
    room = PROMPT + TOKENS
    state = model.init_state(1, room)  # type: ignore[operator]
    logits, state = prefill(model, prompt, state, chunk=PROMPT // 2, control=control(case.mode, 1, PROMPT))
    first = logits.argmax(-1)
    decoder = Decoder(model, state, mode=case.mode)
    tokens = torch.cat([first[:, None], decoder.generate(first, TOKENS)], dim=1)
    rates = decoder.firing_rates(TOKENS)
    whole = torch.cat([prompt, tokens[:, :-1]], dim=1)
    given = control(case.mode, *whole.shape)
    full = model(whole, control=given).logits[:, PROMPT - 1 :].float()
    exact = (
        full if dtype == torch.float32 else copy.deepcopy(model).float()(whole, control=given).logits[:, PROMPT - 1 :]
    )
    chosen = full.gather(2, tokens[..., None])[..., 0]
    return Agreement(
        model=case.label,
        dtype=str(dtype).removeprefix("torch."),
        tokens=tokens.numel(),
        equal=int((full.argmax(-1) == tokens).sum()),
        shortfall=float((full.amax(-1) - chosen).max()),
        rounding=float((full - exact).abs().max()),
        firing_rates=rates,
        state_bytes=decoder.state_bytes,
        counted_bytes=accounting.state_bytes(spec, room, dtype.itemsize),
    )
