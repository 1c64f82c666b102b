"""A program's step is trained on only where its gradients are those of the forms in torch."""

import json
import math

import pytest
import torch
from engine_jobs import job, run
from wrong_kernels import with_gradient

from architectures import kernels
from probes.engine import gradients


def test_rows_are_compared_by_their_own_size():
    expected = torch.tensor([[100.0, 0.0], [0.001, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert gradients.row_error(expected, expected) == 0
    found = expected.clone()
    found[1] *= -1
    assert gradients.row_error(found, expected) > 1.5  # one of three rows
    many = torch.ones(30, 2)
    few = many.clone()
    few[0] = 5
    assert gradients.row_error(few, many) == 0  # one of thirty is forgiven
    assert gradients.row_error(torch.tensor([1.1, 1.1]), torch.tensor([1.0, 1.0])) == pytest.approx(0.1, rel=1e-5)
    assert gradients.row_error(torch.tensor([1.0]), torch.tensor([0.0])) == math.inf
    assert gradients.row_error(torch.zeros(2), torch.zeros(2)) == 0


def wrong_query(q, k, v, beta, g=None, initial=None):
    """The gated delta rule with a gradient of the queries that has nothing to do with the right one."""
    chunked = kernels.load("gated_delta", "chunked")
    return chunked(with_gradient(q, lambda grad: grad.flip(1)), k, v, beta, g, initial)


def test_trials_of_a_wrong_program_are_trained_by_the_forms_in_torch(tmp_path, monkeypatch):
    jobs = [job("gdn"), job("gdn", lr=3e-3), job("attention")]
    right = run(jobs, tmp_path / "right")
    backends = {"wrong": kernels.Backend("nowhere:nothing", cuda=True), **kernels.OPERATIONS["gated_delta"]}
    monkeypatch.setitem(kernels.OPERATIONS, "gated_delta", backends)
    monkeypatch.setitem(kernels._functions, "nowhere:nothing", wrong_query)
    choose = kernels.choose

    def chosen(operation, *arguments):
        name = choose(operation, *arguments)
        return "wrong" if operation == "gated_delta" and not kernels._torch_forms else name

    monkeypatch.setattr(kernels, "choose", chosen)
    monkeypatch.setattr("probes.engine.programs.canary.settle", lambda *arguments: [])  # as if it had seen nothing
    rows = run(jobs, tmp_path / "wrong")
    for each in jobs[:2]:
        row = rows[each.trial.identity()]
        assert row["status"] == "ok"
        assert row["env.engine"].startswith("eager: forms in torch: gradient of blocks.0.mixer.")
        assert row["excess"] == pytest.approx(right[each.trial.identity()]["excess"], rel=1e-3)
    assert rows[jobs[2].trial.identity()]["env.engine"] == "steps"
    found = json.loads((tmp_path / "wrong" / "canary-cpu.json").read_text())["gradients"]
    assert sorted(entry["accepted"] for entry in found) == [False, True]
    assert max(entry["error"] for entry in found) > 0.3


def test_half_precision_is_within_its_tolerance(tmp_path):
    from probes.engine.jobs import Engine
    from probes.trial import Runtime

    engine = Engine(tmp_path, Runtime(precision="bf16"))
    engine.add([job(layers, steps=2) for layers in ("attention", "gdn", "mamba2", "sliding")])
    engine.run()
    found = list(engine.programs.gradients.values())
    assert len(found) == 4
    assert all(verdict.accepted and 1e-4 < verdict.error < 0.15 for verdict in found), found
