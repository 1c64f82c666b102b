"""Distillation of the native gate into routers."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_model

from architectures import SpecError, build, resolve
from architectures.amor_router import Router
from probes.config import Evaluation, Seeds, Training
from probes.distil import Settings, distil, fit_router
from probes.tasks import create
from probes.trial import Labels, Runner, Runtime, make_trial, read

SMALL = {"length": 32, "burn_in": 8, "regimes": 3, "vocab": 5, "windows": [1, 4], "switch_rate": 0.1}


def finished(tmp_path, trigger, steps=60):
    task = create("two_timescale", SMALL)
    spec = resolve({"kind": "amor", "vocab_size": 5, "layers": "gdn*1", "d_model": 16, "blocks": 2, "trigger": trigger})
    train = Training(steps=steps, batch_size=16, lr=1e-2, evaluations=1, warmup=1)
    evaluate = Evaluation(validation_sequences=16, test_sequences=64, readout_positions=0)
    trial = make_trial("two_timescale", task, spec, train, evaluate, Seeds())
    row = Runner(trial, Labels("two_timescale", "amor"), Runtime(), tmp_path, None).run()
    assert row["status"] == "ok", row["error"]
    return read(tmp_path / "trials" / row["folder"])


def test_routers_take_the_native_gates_place(tmp_path):
    result = finished(tmp_path, {"momentum": 0.8})
    settings = Settings(fit_positions=8192, calibration_positions=4096, batch_size=1024, epochs=10, lr=3e-3)
    folder, report = distil(result, tmp_path, settings)
    recorded = json.loads((folder / "report.json").read_text())
    assert recorded["trial"] == result.trial.identity()
    assert recorded["agreement"] == report.agreement
    assert report.firing_rate_routed == pytest.approx(report.firing_rate, abs=0.05)
    chance = [rate**2 + (1 - rate) ** 2 for rate in report.firing_rate]
    assert all(0.05 < rate < 0.95 for rate in report.firing_rate)
    assert all(same > 0.5 * (1 + by_chance) for same, by_chance in zip(report.agreement, chance, strict=True))
    assert report.excess == pytest.approx(result.row["excess"], rel=1e-6)
    assert report.excess_change == pytest.approx(report.excess_routed - report.excess)
    assert abs(report.excess_change) < 0.01
    assert report.parameters_added == 2 * (16 * 16 + 2 * 16 + 16 + 1)

    spec = json.loads((folder / "architecture.json").read_text())
    assert spec["trigger"]["kind"] == "router"
    routed = build(spec).eval()
    load_model(routed, folder / "weights.safetensors")
    native = result.model()
    for name, value in native.state_dict().items():
        assert torch.equal(value, routed.state_dict()[name]), name
    calls = []
    routed.head = lambda features, head=routed.head: calls.append(1) or head(features)
    routed(torch.zeros(1, 4, dtype=torch.long))
    assert len(calls) == 1


def test_only_a_native_gate_can_be_distilled(tmp_path):
    with pytest.raises(SpecError, match="needs an AMOR model with the entropy trigger"):
        distil(finished(tmp_path, "always", steps=1), tmp_path)


def test_the_linear_start_is_ridge_regression_and_the_fit_learns_what_is_not_linear():
    torch.manual_seed(0)
    x = torch.randn(4096, 6) + 1
    linear = x @ torch.tensor([0.5, -0.2, 0.0, 0.0, 0.1, 0.0]) + 0.3
    tau, sigma = torch.tensor(0.5), torch.tensor(0.3)
    router = Router(6, 16)
    fit_router(router, x, linear, tau, sigma, Settings(epochs=0), seed=0)
    torch.testing.assert_close(router(x), linear, atol=5e-3, rtol=0)
    bent = linear + 0.3 * (x[:, 2] > 1)
    errors = []
    for epochs in (0, 150):
        fit_router(router, x, bent, tau, sigma, Settings(epochs=epochs, batch_size=512, lr=1e-2), seed=0)
        with torch.no_grad():
            errors.append(float((router(x) - bent).abs().mean()))
    assert errors[1] < 0.5 * errors[0]


def test_positions_at_the_threshold_weigh_more():
    """Two targets for the same features: the prediction is drawn to the one at the threshold."""
    x, y = torch.zeros(2000, 2), torch.cat([torch.full((1000,), 0.5), torch.full((1000,), 0.9)])
    router = Router(2, 2)
    fit_router(router, x, y, torch.tensor(0.5), torch.tensor(0.4), Settings(epochs=300, batch_size=2000), seed=0)
    assert float(router(x[:1]).detach()) < 0.65
