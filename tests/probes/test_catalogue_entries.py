"""Every task and every suite of the catalogue keeps its contract: an entry is tested by being listed."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch

from probes.catalogue import load_catalogue
from probes.scoring import ratio
from probes.sweep import expand
from probes.task import IGNORED, Batch, Task
from probes.tasks import TASKS, create

CATALOGUE = load_catalogue()
NAMES = list(dict.fromkeys([*CATALOGUE.tasks, *TASKS]))
SEQUENCES = 24


@functools.lru_cache(maxsize=2)
def drawn(name: str) -> tuple[Task, Batch]:
    task = CATALOGUE.make_task(name)
    return task, task.sample(torch.Generator().manual_seed(5), SEQUENCES)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_well_formed_and_fixed_by_the_generator(name: str) -> None:
    task, batch = drawn(name)
    assert batch.tokens.shape == batch.targets.shape == (SEQUENCES, task.length)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < task.vocab_size
    scored = batch.targets[batch.scored]
    assert len(scored) > 0
    assert ((batch.targets == IGNORED) | (batch.targets >= 0)).all()
    assert same(batch, task.sample(torch.Generator().manual_seed(5), SEQUENCES))
    assert not same(batch, task.sample(torch.Generator().manual_seed(6), SEQUENCES))
    for labels in batch.slices.values():
        assert labels.shape == batch.tokens.shape


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_plain_data_that_make_the_task_again(name: str) -> None:
    task, batch = drawn(name)
    settings = json.loads(json.dumps(task.settings, allow_nan=False))
    again = create(CATALOGUE.task_entry(name)["kind"], settings)
    assert again.settings == task.settings
    assert (again.name, again.version) == (task.name, task.version)
    assert same(batch, again.sample(torch.Generator().manual_seed(5), SEQUENCES))


@pytest.mark.parametrize("name", NAMES)
def test_references_are_distributions_and_none_beats_bayes(name: str) -> None:
    task, batch = drawn(name)
    few = batch.rows(0, 4)
    references = task.references()
    count = batch.scored.sum(1).numpy().astype(float)
    bayes = references["bayes"].log_prob(batch)
    for key, reference in references.items():
        log_prob = reference.log_prob(batch)
        assert log_prob.dtype == torch.float64, key
        assert (log_prob[~batch.scored] == 0).all(), key
        assert (log_prob <= 1e-12).all(), key
        predictive = reference.log_predictive(few)
        if reference.is_bound:
            assert predictive is None, key
            continue
        if predictive is not None:
            assert predictive.shape[0] == few.scored.sum(), key
            torch.testing.assert_close(predictive.exp().sum(-1), torch.ones(len(predictive), dtype=torch.float64))
            at_target = predictive.gather(-1, few.targets[few.scored][:, None])[:, 0]
            torch.testing.assert_close(at_target, reference.log_prob(few)[few.scored])
        gap = (bayes - log_prob).sum(1).numpy()
        if np.isfinite(gap).all():
            mean, se = ratio(gap, count)
            assert mean >= -4 * se - 1e-12, key


@pytest.mark.parametrize("name", CATALOGUE.suites)
def test_every_suite_can_be_expanded(name: str) -> None:
    suite = CATALOGUE.suite(name)
    groups = expand(suite, CATALOGUE)
    jobs = [job for group in groups for job in [*group.search, *group.rest]]
    identities = [job.trial.identity() for job in jobs]
    assert len(set(identities)) == len(identities)
    assert {group.labels.task for group in groups} == set(suite.tasks)
    assert {group.labels.architecture for group in groups} == set(suite.architectures)
