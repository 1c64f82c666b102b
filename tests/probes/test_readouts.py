"""Probes of layers on models whose layers are known."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from probes.readouts import layer_readouts
from probes.splits import evaluation_blocks
from probes.tasks import create

TASK = {"regimes": 3, "vocab": 5, "overlap": 1.0, "switch_rate": 0.05, "length": 24, "burn_in": 4, "windows": [1]}


class Known(nn.Module):
    """Layer 0 holds the token; layer 1 the logarithm of the exact posterior, turned and shifted; layer 2 noise."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        generator = torch.Generator().manual_seed(0)
        self.turn = torch.randn(3, 8, generator=generator, dtype=torch.float64)
        self.noise = generator

    def forward(self, tokens, *, positions, features):
        from filters import torch_backend

        posterior = torch_backend.forward(self.task.hmm, tokens).posterior
        noise = torch.randn(*tokens.shape, 8, generator=self.noise, dtype=torch.float64)
        layers = [nn.functional.one_hot(tokens, 5).double(), posterior.log() @ self.turn + 1, noise]
        return SimpleNamespace(extras={"features": layers})


@pytest.fixture(scope="module")
def found():
    task = create("two_timescale", TASK)
    fit, test = (evaluation_blocks(task, 0, split, 300) for split in ("validation", "test"))
    return layer_readouts(Known(task), task, fit, test, positions=4000)


def test_the_layer_that_holds_the_posterior_is_found(found):
    by_layer = {readout.layer: readout for readout in found}
    assert len(found) == 3
    assert by_layer[1].kl < 1e-3
    assert by_layer[1].explained > 0.99
    assert 0 <= by_layer[1].explained_se < by_layer[0].explained_se < 0.05
    assert abs(by_layer[2].explained) < 0.02


def test_sequences_are_told_apart_across_batches():
    """The error does not depend on how the test sequences are cut into batches."""
    task = create("two_timescale", TASK)
    fit, (whole, *_) = (evaluation_blocks(task, 0, split, 60) for split in ("validation", "test"))
    errors = [
        layer_readouts(Known(task), task, fit, test, positions=2000)[1].explained_se
        for test in ([whole], [whole.rows(0, 20), whole.rows(20, 40), whole.rows(40, 60)])
    ]
    assert errors[0] > 0
    assert errors[1] == pytest.approx(errors[0], rel=1e-6)


def test_positions_of_one_sequence_are_no_independent_samples():
    """The error is that of the ratio of sums by sequence, from the values of one sequence at a time."""
    task = create("two_timescale", TASK)
    fit, test = (evaluation_blocks(task, 0, split, 300) for split in ("validation", "test"))
    (first, *_) = layer_readouts(Known(task), task, fit, test, positions=200)
    assert first.explained_se > 0
    (alone, *_) = layer_readouts(Known(task), task, fit, [test[0].rows(0, 1)], positions=200)
    assert math.isnan(alone.explained_se)
    (many, *_) = layer_readouts(Known(task), task, fit, test, positions=200 * 20)
    assert 3 < first.explained_se / many.explained_se < 7


def test_the_embedding_tells_what_the_token_tells(found):
    """Between nothing and everything: the conditional mean of the posterior given the token is softmax of a table."""
    assert 0.02 < found[0].explained < 0.9


def test_a_task_without_beliefs_or_a_model_without_features_has_no_readout():
    task = create("two_timescale", TASK)
    blocks = evaluation_blocks(task, 0, "test", 8)

    class Plain(nn.Module):
        def forward(self, tokens, *, positions=None):
            return None

    assert layer_readouts(Plain(), task, blocks, blocks, positions=10) == []
    task.beliefs = lambda batch: {}
    assert layer_readouts(Known(task), task, blocks, blocks, positions=10) == []
