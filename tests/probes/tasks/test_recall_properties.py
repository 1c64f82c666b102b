"""What holds of every recall task whatever its dials: tried on random dials."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import recall_checks as checks
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.splits import split_generator
from probes.splits_check import assert_disjoint
from probes.task import Batch
from probes.tasks import create


@st.composite
def mqar(draw):
    pairs, distractors, blanks = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 4))
    spare = draw(st.integers(0, 12))
    return {
        "vocab_size": draw(st.integers(40, 90)),
        "pairs": pairs,
        "distractors": distractors,
        "blanks": blanks,
        "length": 2 * (pairs + distractors) + blanks + 2 * pairs + spare,
        "gap_power": draw(st.sampled_from([0.01, 0.5, 1.0, 1.5])),
        "filler": draw(st.sampled_from([0, 1, 8, None])),
    }


STRATEGIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "mqar": mqar(),
    "copy": st.fixed_dictionaries(
        {"vocab_size": st.integers(3, 20), "string": st.integers(1, 12), "blanks": st.integers(0, 3)}
    ),
    "selective_copy": st.fixed_dictionaries(
        {
            "vocab_size": st.integers(6, 20),
            "string": st.integers(1, 6),
            "length": st.integers(14, 30),
            "noise": st.integers(0, 3),
            "teacher_forced": st.booleans(),
        }
    ),
    "induction": st.fixed_dictionaries({"vocab_size": st.integers(2, 12), "length": st.integers(2, 30)}),
    "phonebook": st.fixed_dictionaries(
        {
            "entries": st.integers(1, 9),
            "name_length": st.integers(1, 3),
            "name_tokens": st.integers(9, 12),
            "number_length": st.integers(1, 4),
            "number_tokens": st.integers(2, 6),
        }
    ),
    "needle": st.fixed_dictionaries(
        {
            "length": st.integers(24, 60),
            "needles": st.integers(1, 3),
            "haystack": st.sampled_from(["repeated", "random"]),
            "filler": st.integers(1, 9),
            "key_tokens": st.integers(3, 9),
            "value_length": st.integers(1, 4),
            "value_tokens": st.integers(2, 6),
            "depth": st.sampled_from([None, 0.0, 0.5, 1.0]),
        }
    ),
    "in_context_recall": st.fixed_dictionaries(
        {
            "vocab_size": st.integers(8, 20),
            "length": st.integers(2, 20).map(lambda half: 2 * half),
            "noise": st.sampled_from([0.0, 0.3]),
            "noise_tokens": st.integers(1, 4),
        }
    ),
    "fuzzy_recall": st.fixed_dictionaries(
        {
            "vocab_size": st.integers(8, 16),
            "length": st.integers(12, 50),
            "key_motif": st.integers(1, 3),
            "value_motif": st.integers(1, 3),
            "vary_keys": st.booleans(),
        }
    ),
}
KINDS = list(STRATEGIES)
FEW = settings(max_examples=max(1, settings.default.max_examples // 4))


def random_task(data, kind, **more):
    dials = data.draw(STRATEGIES[kind])
    widths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True))
    return create(kind, {**dials, "windows": sorted(widths), "slots": [1, 3], **more})


def scan(kind, task, tokens):
    """The answers of one sequence by reading it from left to right: position to token. None: the task's own check."""
    found: dict[int, int] = {}
    if kind in ("mqar", "in_context_recall", "induction"):
        book: dict[int, int] = {}
        pairs_end = 2 * task.stored if kind == "mqar" else len(tokens)
        for place, token in enumerate(tokens):
            before = tokens[place - 1]
            completes = kind == "induction" or place % 2 == 1
            if place and completes and place < pairs_end and (kind != "in_context_recall" or before < task.keys):
                book[before] = token
            asks = kind == "induction" or (kind == "mqar" and place >= pairs_end) or place % 2 == 0
            if asks and token in book:
                found[place] = book[token]
    elif kind == "copy":
        found = {task.start + index: tokens[index] for index in range(task.string)}
    elif kind == "selective_copy":
        data = [token for token in tokens[: task.context] if token >= task.first_data]
        found = {task.first_answer + index: token for index, token in enumerate(data)}
    elif kind in ("phonebook", "needle"):
        asked = tokens[task.query + 1 : task.query + 1 + task.key_length]
        for cell in range(task.cells):
            start = task.offset + cell * task.entry + int(task.marker)
            if tokens[start : start + task.key_length] == asked:
                value = tokens[start + task.key_length : start + task.key_length + task.value_length]
                found = {task.query + task.key_length + digit: token for digit, token in enumerate(value)}
    else:
        words: dict[tuple[int, ...], list[int]] = {}
        place = 0
        while place < len(tokens):
            end = place
            while end < len(tokens) and tokens[end] < task.keys:
                end += 1
            stop = end
            while stop < len(tokens) and tokens[stop] >= task.keys:
                stop += 1
            key, value = tuple(tokens[place:end]), tokens[end:stop]
            if key in words:
                found |= {end - 1 + digit: token for digit, token in enumerate(value)}
            words.setdefault(key, value)
            place = stop
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_a_scan_answers_every_query(kind, data):
    task = random_task(data, kind)
    batch = checks.draw(task, 20, data.draw(st.integers(0, 1000)))
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist()):
        expected = {place: target for place, target in enumerate(targets) if target >= 0}
        found = scan(kind, task, tokens)
        if kind == "fuzzy_recall":
            # the last value may be cut, and go on after the last token read
            expected.pop(task.length - 1, None)
            found.pop(task.length - 1, None)
        assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_references_are_distributions_and_bayes_is_never_beaten(kind, data):
    task = random_task(data, kind, supervise=data.draw(st.sampled_from(["scored", "all"])))
    batch = checks.draw(task, 60, data.draw(st.integers(0, 1000)))
    checks.check_normalised(task, batch)
    losses = {name: -one.log_prob(batch).sum(1) for name, one in task.references().items() if not one.is_bound}
    for name, loss in losses.items():
        assert torch.isfinite(loss).all(), name
        gain = losses["bayes"] - loss
        assert gain.mean() <= 5 * gain.std() / math.sqrt(len(batch)) + 1e-9, name
    widths = [name for name in losses if name.startswith("window")]
    for smaller, larger in pairwise(widths):
        gain = losses[larger] - losses[smaller]
        assert gain.mean() <= 5 * gain.std() / math.sqrt(len(batch)) + 1e-9


def classes(kind, task):
    """Ranges of tokens that may be renamed among themselves."""
    if kind == "mqar":
        return [(1, task.first_key), (task.first_key, task.first_value), (task.first_value, task.vocab_size)]
    if kind == "copy":
        return [(2, task.vocab_size)]
    if kind == "selective_copy":
        return [(2, task.first_data), (task.first_data, task.vocab_size)]
    if kind in ("phonebook", "needle"):
        return [(task.first_key, task.first_value), (task.first_value, task.vocab_size)]
    if kind == "in_context_recall":
        return [(0, task.keys), (task.keys, task.first_noise), (task.first_noise, task.vocab_size)]
    return [(0, task.keys), (task.keys, task.vocab_size)] if kind == "fuzzy_recall" else [(0, task.vocab_size)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_renaming_tokens_changes_no_score(kind, data):
    task = random_task(data, kind)
    batch = checks.draw(task, 20)
    name = np.arange(task.vocab_size)
    shuffle = np.random.default_rng(data.draw(st.integers(0, 100)))
    for low, high in classes(kind, task):
        name[low:high] = shuffle.permutation(name[low:high])
    renamed = torch.tensor(name)
    targets = torch.where(batch.scored, renamed[batch.targets.clamp(min=0)], batch.targets)
    other = Batch(renamed[batch.tokens], targets, batch.latents, batch.slices)
    for key, reference in task.references().items():
        np.testing.assert_allclose(reference.log_prob(other), reference.log_prob(batch), atol=1e-12, err_msg=key)


@pytest.mark.parametrize("kind", [*KINDS, "compression", "markov", "hmm"])
def test_splits_are_disjoint_and_reproducible(kind):
    task = create(kind, {"length": 32} if kind == "compression" else {})
    splits = {name: task.sample(split_generator(0, name), 128) for name in ("train", "validation", "test")}
    assert_disjoint(splits)
    again = task.sample(split_generator(0, "test"), 128)
    assert torch.equal(again.tokens, splits["test"].tokens)
    assert torch.equal(again.targets, splits["test"].targets)
    assert not torch.equal(task.sample(split_generator(1, "test"), 128).tokens, again.tokens)
