"""Scores: the ratio estimator, the pairing, and the check that exposes a leak of the target."""

import math

import numpy as np
import pytest
import torch

from probes.scoring import EvaluationSet, kl_divergence, paired, ratio
from probes.tasks import create

TASK = {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 16, "burn_in": 4, "windows": [1, 4]}


@pytest.fixture(scope="module")
def evaluation():
    return EvaluationSet(create("two_timescale", TASK), 0, "test", 600, batch_size=100)


def predictor(evaluation, name):
    return lambda batch: evaluation.references[name].log_predictive(batch)


def test_ratio_is_the_mean_and_its_error_where_counts_are_equal():
    values = np.random.default_rng(0).normal(size=50)
    estimate = ratio(values * 3, np.full(50, 3.0))
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.se == pytest.approx(values.std(ddof=1) / math.sqrt(50))


def test_ratio_error_covers_at_its_nominal_rate():
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        count = rng.integers(1, 5, size=80).astype(float)
        estimate = ratio(rng.normal(0.3, 1.0, size=80) * np.sqrt(count) + 0.3 * (count - np.sqrt(count)), count)
        inside += abs(estimate.mean - 0.3) <= 1.96 * estimate.se
    assert 0.92 <= inside / 400 <= 0.98


def test_kl_has_no_term_where_p_is_zero():
    log_p = torch.tensor([[0.0, -torch.inf]], dtype=torch.float64)
    log_q = torch.tensor([[math.log(0.5), math.log(0.5)]], dtype=torch.float64)
    assert kl_divergence(log_p, log_q).item() == pytest.approx(math.log(2))
    assert kl_divergence(log_p, log_p).item() == 0


def test_a_model_that_is_a_reference_scores_as_that_reference(evaluation):
    scores = evaluation.score(predictor(evaluation, "window_4"))
    model, reference = scores["model"], scores["window_4"]
    assert model.excess() == pytest.approx(reference.excess())
    assert model.accuracy() == pytest.approx(reference.accuracy())
    assert paired(model, reference).mean == pytest.approx(0, abs=1e-12)
    assert reference.to_model.sum() == pytest.approx(0, abs=1e-9)


def test_kl_and_sampled_estimate_the_same_thing(evaluation):
    model = evaluation.score(predictor(evaluation, "window_1"))["model"]
    difference = model.agreement()
    assert abs(difference.mean) <= 4 * difference.se
    spread_kl, spread_sampled = ratio(model.kl, model.count).se, ratio(model.sampled, model.count).se
    assert spread_kl < spread_sampled


def test_a_leak_of_the_target_is_exposed(evaluation):
    """A predictor that moves a little probability onto the target beats Bayes in samples while its KL grows."""

    def leaking(batch):
        log_p = evaluation.references["bayes"].log_predictive(batch)
        return log_p + 0.2 * torch.nn.functional.one_hot(batch.targets[batch.scored], 4)

    model = evaluation.score(leaking)["model"]
    difference = model.agreement()
    assert model.excess().mean > 0
    assert ratio(model.sampled, model.count).mean < 0
    assert abs(difference.mean) > 4 * difference.se


def test_scores_do_not_depend_on_the_batch_size():
    task = create("two_timescale", TASK)
    small, large = (EvaluationSet(task, 0, "test", 300, batch_size=size) for size in (7, 256))
    assert small.digest == large.digest
    one, other = (part.score(predictor(part, "window_1")) for part in (small, large))
    assert np.allclose(one["model"].kl, other["model"].kl, rtol=0, atol=1e-12)


def test_without_a_cache_the_scores_are_the_same():
    task = create("two_timescale", TASK)
    kept, formed = (EvaluationSet(task, 0, "test", 64, cache_bytes=size) for size in (2**29, 0))
    assert np.array_equal(kept.score()["window_4"].kl, formed.score()["window_4"].kl)
    assert not formed._cache


def test_slices_and_positions_add_up(evaluation):
    sums = evaluation.score(predictor(evaluation, "window_1"))["model"]
    assert sums.position["count"].sum() == sums.count.sum()
    assert sums.position["excess"].sum() == pytest.approx(sums.kl.sum())
    table = sums.slices["octave_since_switch"]
    assert sum(part[0] for part in table.values()) < sums.count.sum()
    assert table[0][3] / table[0][0] > table[2][3] / table[2][0] or len(table) > 2


def test_a_reference_that_is_no_distribution_is_refused(monkeypatch):
    task = create("two_timescale", TASK)
    references = task.references()
    honest = references["window_1"].log_predictive
    monkeypatch.setattr(references["window_1"], "log_predictive", lambda batch: honest(batch) + 0.1)
    monkeypatch.setattr(task, "references", lambda: references)
    with pytest.raises(ValueError, match="window_1 is no distribution"):
        EvaluationSet(task, 0, "test", 8).score()


def test_sequence_accuracy_wants_every_position_right(evaluation):
    sums = evaluation.score(predictor(evaluation, "bayes"))["model"]
    assert sums.sequence_accuracy().mean == pytest.approx(float((sums.correct == 12).mean()))
