"""The end of a recurrent mixer in one kernel is the definition, and the definition is what the mixers compute."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from decoding_models import V, model_of

from architectures.decoding import prefill
from architectures.kernels import finish

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
triton_here = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or (DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="neither a GPU nor Triton's interpreter",
)


@triton_here
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_is_the_definition(before: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert finish.error_of(DEVICE, dtype, before=before) < finish.TOLERANCE[dtype]


@triton_here
@pytest.mark.parametrize("before", [True, False])
def test_tensors_in_any_layout(before: bool) -> None:
    o, u, z = (torch.randn(2, 4, 3, 8, device=DEVICE).transpose(1, 2) for _ in range(3))
    weight = torch.rand(32 if before else 8, device=DEVICE)
    extra = {"u": u, "skip": torch.randn(4, device=DEVICE)} if before else {}
    expected = finish.plain(o, z, weight, 1e-5, before=before, **extra)
    torch.testing.assert_close(finish.fused(o, z, weight, 1e-5, before=before, **extra), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["Mamba2", "Gated DeltaNet", "Mamba2 Fused Hybrid", "Amor-Gated DeltaNet", "Oryx-TM", "Oryx-TG"]
)
@pytest.mark.parametrize("form", ["plain", pytest.param("fused", marks=triton_here)])
@torch.no_grad()
def test_models_compute_the_same_with_it(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, torch.float32).to(DEVICE)
    prompt = torch.randint(V, (2, 11), device=DEVICE)
    expected, _ = prefill(model, prompt, model.init_state(2, 11), chunk=4)
    calls = []

    def noted(*args, **kwargs):
        calls.append(args[0].shape)
        return getattr(finish, f"_{form}")(*args, **kwargs)

    monkeypatch.setattr(finish, f"_{form}", getattr(finish, form), raising=False)
    monkeypatch.setattr(finish, "usable", lambda o: o.shape[1] > 1)
    monkeypatch.setattr(finish, "fused", noted)
    found, _ = prefill(model, prompt, model.init_state(2, 11), chunk=4)
    assert calls
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_it_is_used_only_once_approved() -> None:
    o = torch.zeros(1, 4, 2, 8, device=DEVICE, dtype=torch.bfloat16)
    finish.withdraw()
    with torch.no_grad():
        assert not finish.usable(o)
        line = finish.approve(DEVICE, torch.bfloat16)
        assert finish.usable(o) == line.endswith("accepted") == (DEVICE.type == "cuda")
    assert not finish.usable(o)  # gradients
    finish.withdraw()
