"""The two-timescale task: its generator against its model, its references against each other."""

import numpy as np
import pytest
import torch

from filters import reference
from probes.scoring import EvaluationSet, paired
from probes.splits import digest, evaluation_blocks, split_generator
from probes.task import IGNORED, TaskError
from probes.tasks import create
from probes.tasks.two_timescale import _follow, _inverse_cdf_maps

SMALL = {"regimes": 3, "vocab": 5, "overlap": 0.7, "switch_rate": 0.1, "length": 24, "burn_in": 6, "windows": [1, 4]}


@pytest.fixture(scope="module")
def task():
    return create("two_timescale", SMALL)


def draw(task, count, seed=0):
    return task.sample(torch.Generator().manual_seed(seed), count)


def test_targets_are_the_next_tokens_from_the_burn_in_on(task):
    batch = draw(task, 7)
    assert batch.tokens.shape == batch.targets.shape == (7, 24)
    assert (batch.targets[:, :6] == IGNORED).all()
    assert (batch.targets[:, 6:-1] == batch.tokens[:, 7:]).all()
    assert batch.latents["regimes"].shape == (7, 25)


def test_a_batch_is_a_function_of_the_generator(task):
    assert torch.equal(draw(task, 5, seed=3).tokens, draw(task, 5, seed=3).tokens)
    assert not torch.equal(draw(task, 5, seed=3).tokens, draw(task, 5, seed=4).tokens)


def test_regimes_and_tokens_follow_the_model(task):
    """Counts of 40,000 sequences against every transition and emission probability, within five standard errors."""
    batch = draw(task, 40_000)
    z = batch.latents["regimes"].numpy()
    x = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).numpy()

    def compare(where, probability):
        count = len(where)
        frequency = np.bincount(where, minlength=len(probability)) / count
        error = np.sqrt(probability * (1 - probability) / count) + 1e-12
        assert (np.abs(frequency - probability) <= 5 * error).all()

    compare(z[:, 0], task.hmm.initial)
    compare(x[:, 0], np.full(5, 0.2))
    for i in range(3):
        compare(z[:, 1][z[:, 0] == i], task.hmm.transition[i])
        for u in range(5):
            here = (z[:, 9] == i) & (x[:, 8] == u)
            compare(x[:, 9][here], task.hmm.emission[i, u])


def test_a_switch_does_not_depend_on_the_past(task):
    """The regime after a switch is uniform over the others whatever the regime before was."""
    z = draw(task, 60_000).latents["regimes"].numpy()
    switched = (z[:, 5] != z[:, 4]) & (z[:, 4] != z[:, 3])
    back = (z[:, 5] == z[:, 3])[switched]
    assert abs(back.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(back))


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65])
def test_prefix_composition_equals_the_loop_over_time(length):
    generator = torch.Generator().manual_seed(length)
    maps = torch.randint(0, 6, (4, length, 6), generator=generator)
    first = torch.randint(0, 6, (4,), generator=generator)
    token, expected = first, []
    for t in range(length):
        token = maps[:, t].gather(1, token[:, None])[:, 0]
        expected.append(token)
    assert torch.equal(_follow(maps, first), torch.stack(expected, dim=1))


def test_inverse_cdf_never_draws_an_impossible_token():
    table = torch.tensor([[[0.0, 0.5, 0.0, 0.5, 0.0]] * 5], dtype=torch.float64)
    uniform = torch.tensor([[0.0, 0.4999999, 0.5, 1 - 2**-53]], dtype=torch.float64)
    maps = _inverse_cdf_maps(table.cumsum(-1), torch.zeros(1, 4, dtype=torch.int64), uniform)
    assert maps[0, :, 0].tolist() == [1, 1, 3, 3]


CHANGES = {
    "regimes": 4,
    "vocab": 6,
    "overlap": 0.2,
    "switch_rate": 0.5,
    "length": 25,
    "burn_in": 7,
    "concentration": 1.0,
    "table_seed": 1,
}


@pytest.mark.parametrize("dial", sorted(CHANGES))
def test_every_dial_changes_the_data(task, dial):
    changed = create("two_timescale", {**SMALL, dial: CHANGES[dial]})
    assert digest(evaluation_blocks(task, 0, "test", 64)) != digest(evaluation_blocks(changed, 0, "test", 64))


def test_reference_dials_change_the_references():
    assert "window_3_stationary" in create("two_timescale", {**SMALL, "windows": [3]}).references()
    assert "fixed_decay_0.5" in create("two_timescale", {**SMALL, "decay_switch_rates": [0.5]}).references()


def test_references_are_normalised_and_agree_with_the_definition(task):
    batch = draw(task, 9)
    full = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).numpy()
    target = batch.targets[batch.scored]
    for name, predictor in task.references().items():
        log_p = predictor.log_predictive(batch)
        assert log_p.dtype == torch.float64
        assert log_p.shape == (9 * 18, 5)
        assert torch.allclose(log_p.exp().sum(-1), torch.ones(9 * 18, dtype=torch.float64), rtol=0, atol=1e-12), name
        log_prob = predictor.log_prob(batch)
        assert (log_prob[~batch.scored] == 0).all()
        assert torch.allclose(log_prob[batch.scored], log_p.gather(1, target[:, None])[:, 0], rtol=0, atol=1e-12)
    exact = reference.forward(task.hmm, full).log_prob
    found = task.references()["bayes"].log_prob(batch).numpy()
    assert np.allclose(found[:, 6:], exact[:, 6:], rtol=0, atol=1e-12)


def test_bayes_is_not_beaten_and_windows_improve_with_width(task):
    scores = EvaluationSet(task, 0, "test", 512).score()
    for name, sums in scores.items():
        kl, sampled = sums.excess(), paired(sums, scores["bayes"])
        assert kl.mean >= -1e-12, name
        assert abs(sums.agreement().mean) <= 4 * sums.agreement().se + 1e-12, name
        assert sampled.mean >= -4 * sampled.se - 1e-12, name
    assert scores["window_4_stationary"].excess().mean < scores["window_1_stationary"].excess().mean
    assert scores["window_4_stationary"].excess().mean <= scores["window_4"].excess().mean


def test_a_window_as_long_as_the_sequence_is_bayes(task):
    batch = draw(task, 4)
    assert torch.allclose(task.window(24).log_prob(batch), task.references()["bayes"].log_prob(batch), atol=1e-12)


def test_a_window_is_no_bound_before_the_stream_is_stationary():
    early = {**SMALL, "burn_in": 4, "switch_rate": 0.01}
    assert create("two_timescale", early).window(3) is None
    assert create("two_timescale", early).window(24) is not None
    assert create("two_timescale", {**early, "length": 600, "burn_in": 500}).window(3) is not None


def test_splits_have_streams_of_their_own(task):
    parts = {split: evaluation_blocks(task, 0, split, 300) for split in ("validation", "test")}
    assert digest(parts["validation"]) != digest(parts["test"])
    assert [len(block) for block in parts["test"]] == [256, 44]
    fresh = task.sample(split_generator(0, "train"), 256)
    seen = {tuple(row) for block in parts["test"] for row in block.tokens.tolist()}
    assert not seen & {tuple(row) for row in fresh.tokens.tolist()}


def test_a_larger_split_begins_with_the_smaller(task):
    small, large = (evaluation_blocks(task, 0, "test", count) for count in (100, 300))
    assert torch.equal(small[0].tokens, large[0].tokens[:100])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"burn_in": 24, "length": 24}, "burn_in = 24"),
        ({"overlap": 1.5}, "overlap = 1.5"),
        ({"overlp": 0.5}, "'overlap'"),
        ({"regimes": 1}, "switch_rate"),
        ({"windows": [0]}, "windows"),
    ],
)
def test_impossible_dials_are_one_clear_line(settings, says):
    with pytest.raises(TaskError, match=says) as error:
        create("two_timescale", settings)
    assert "\n" not in str(error.value)


def test_one_regime_is_a_plain_markov_chain():
    task = create("two_timescale", {**SMALL, "regimes": 1, "switch_rate": 0.0, "overlap": 1.0})
    scores = EvaluationSet(task, 0, "test", 64).score()
    assert scores["window_1"].excess().mean == pytest.approx(0, abs=1e-12)
