"""The `hmm` task: the conversion by pair states against path sums, sampling against the references."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import recall_checks as checks
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from filters import reference
from filters.hmm import ModelError
from probes.task import TaskError
from probes.tasks import create, machines
from probes.tasks.hidden_markov import Filtered, Followed

MODELS = {
    "mess3": {"model": "mess3"},
    "z1r": {"model": "z1r"},
    "rrxor": {"model": "rrxor"},
    "parity": {"model": "parity", "bias": 0.3},
    "permutations": {"model": "permutations"},
    "random": {"model": "random", "states": 3, "tokens": 2},
}


def path_sums(edges, initial, tokens):
    """`P(tokens, last state)` by summing over all paths of states."""
    states = len(initial)
    law = np.zeros(states)
    for path in itertools.product(range(states), repeat=len(tokens) + 1):
        weight = initial[path[0]]
        for token, (before, after) in zip(tokens, itertools.pairwise(path)):
            weight *= edges[token, before, after]
        law[path[-1]] += weight
    return law


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.1, 1.0]))
@settings(max_examples=max(1, settings.default.max_examples // 2))
def test_pair_states_are_the_edge_emitting_model(seed, states, tokens, concentration):
    machine = machines.random_edges(states, tokens, concentration, seed)
    word = np.random.default_rng(seed).integers(tokens, size=4)
    total = [path_sums(machine.edges, machine.initial, word[:length]).sum() for length in range(1, 5)]
    if total[-1] <= 1e-12:
        return
    result = reference.forward(machine.hmm, word)
    np.testing.assert_allclose(np.exp(result.log_prob), np.divide(total[1:], total[:-1]), rtol=1e-9)
    onto = np.eye(states)[machine.state]
    law = path_sums(machine.edges, machine.initial, word)
    np.testing.assert_allclose(result.posterior[-1] @ onto, law / law.sum(), atol=1e-9)


@pytest.mark.parametrize("predict", ["next", "state"])
@pytest.mark.parametrize("name", MODELS)
def test_bayes_and_windows_are_exact(name, predict):
    task = create("hmm", {**MODELS[name], "predict": predict, "length": 5, "windows": [1, 3]})
    checks.check_normalised(task, checks.draw(task, 50))
    checks.check_function_of(task, task.references()["bayes"], checks.everything, 3000)
    assert (task.window(2) is None) == (name in ("parity", "permutations"))
    if task.window(2) is not None:
        checks.check_function_of(task, task.window(2), checks.last_tokens(2), 3000)


@pytest.mark.parametrize("name", ["parity", "permutations"])
def test_deterministic_models_are_tracked_without_loss(name):
    task = create("hmm", {**MODELS[name], "predict": "state", "length": 40})
    batch = checks.draw(task, 20)
    assert not task.references()["bayes"].log_prob(batch).any()
    beliefs = task.beliefs(batch)["state"]
    assert torch.equal(beliefs.argmax(1), batch.targets[batch.scored])
    if name == "parity":
        assert torch.equal(batch.targets, batch.tokens.cumsum(1) % 2)


@pytest.mark.parametrize("predict", ["next", "state"])
@pytest.mark.parametrize("name", ["z1r", "rrxor", "parity", "permutations"])
def test_following_the_states_is_the_filter_on_edges(name, predict):
    task = create("hmm", {**MODELS[name], "predict": predict, "length": 12, "burn_in": 1})
    batch = checks.draw(task, 20)
    for width in (None, 1, 3, 12, 40):
        filtered = Filtered(task, "forward")
        if width is not None:
            filtered = Filtered(task, "window", width=width, edge="stationary")
        followed = Followed(task, width)
        np.testing.assert_allclose(
            followed.log_predictive(batch).exp(), filtered.log_predictive(batch).exp(), rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(followed.log_prob(batch), filtered.log_prob(batch), rtol=1e-12, atol=1e-12)


def test_states_in_s5():
    task = create("hmm", {"model": "permutations", "degree": 5, "predict": "state", "length": 8})
    batch = checks.draw(task, 4)
    arrangements = list(itertools.permutations(range(5)))
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist()):
        items = list(range(5))
        for token, target in zip(tokens, targets):
            if token:
                items[token - 1], items[token] = items[token], items[token - 1]
            assert arrangements[target] == tuple(items)


def test_a_model_from_a_file(tmp_path):
    generator = np.random.default_rng(0)
    tables = {
        "transition": generator.dirichlet(np.ones(2), size=2),
        "emission": generator.dirichlet(np.ones(3), size=(2, 3)),
        "initial": np.full(2, 0.5),
    }
    path = tmp_path / "model.npz"
    np.savez(path, **tables)
    task = create("hmm", {"model": "file", "file": str(path), "length": 4, "burn_in": 1})
    assert "unigram" in task.references()
    checks.check_normalised(task, checks.draw(task, 50))
    checks.check_function_of(task, task.references()["bayes"], checks.everything, 4000)
    state = create("hmm", {"model": "file", "file": str(path), "length": 4, "predict": "state"})
    checks.check_function_of(state, state.references()["bayes"], checks.everything, 4000)

    written = tmp_path / "model.json"
    written.write_text(json.dumps({"edges": [[[0.5, 0], [0, 1]], [[0, 0.5], [0, 0]]], "initial": [1, 0]}))
    assert create("hmm", {"model": "file", "file": str(written)}).vocab_size == 2

    np.savez(path, **{**tables, "initial": np.array([1.0, 0.0])})
    with pytest.raises(TaskError, match="holds another model"):
        create("hmm", task.settings)


def test_bad_models_are_one_clear_error(tmp_path):
    with pytest.raises(ModelError, match="sum to 1"):
        machines.from_edges(np.ones((2, 2, 2)), np.array([1.0, 0.0]))
    with pytest.raises(TaskError, match=r"hmm: file = None: model = 'file'"):
        create("hmm", {"model": "file"})
    with pytest.raises(TaskError, match=r"hmm: file = 'nowhere.npz'"):
        create("hmm", {"model": "file", "file": "nowhere.npz"})
    (tmp_path / "x.json").write_text('{"edge": [1]}')
    with pytest.raises(TaskError, match="expected edges and initial"):
        create("hmm", {"model": "file", "file": str(tmp_path / "x.json")})


def test_longer_evaluations_and_burn_in():
    task = create("hmm", {"length": 16, "burn_in": 4, "extrapolate": [2]})
    assert task.evaluations()["length_x2"].length == 32
    assert not checks.draw(task, 3).scored[:, :4].any()
