"""Exact readers in the place of models: what they answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import recall_checks as checks
import torch

from figures import _readers as numpy_readers
from probes import readers
from probes.tasks import create


def accuracy(reader, batch):
    table = reader.log_prob(batch.tokens)[batch.scored]
    torch.testing.assert_close(table.exp().sum(1), torch.ones(len(table), dtype=torch.float64))
    return float(table.gather(1, batch.targets[batch.scored][:, None]).exp().mean())


def ranges(task):
    return {"keys": (task.first_key, task.first_value), "values": (task.first_value, task.vocab_size)}


@pytest.mark.parametrize(
    ("kind", "dials"),
    [
        ("mqar", {"distractors": 2, "blanks": 3}),
        ("mqar", {"gap_power": 0.05, "filler": 0}),
        ("induction", {}),
        ("in_context_recall", {}),
    ],
)
def test_the_induction_reader_answers_everything(kind, dials):
    task = create(kind, dials)
    reader = readers.Induction(task.vocab_size, **(ranges(task) if kind == "mqar" else {}))
    batch = checks.draw(task, 200)
    assert accuracy(reader, batch) == 1
    np.testing.assert_allclose(
        reader.log_prob(batch.tokens)[batch.scored], task.references()["bayes"].log_predictive(batch)
    )


@pytest.mark.parametrize(("slots", "distractors"), [(1, 0), (3, 0), (8, 0), (3, 2), (6, 4), (2, 4)])
def test_the_ring_buffer_is_the_slot_reference(slots, distractors):
    task = create("mqar", {"distractors": distractors, "slots": [slots]})
    reader = readers.RingBuffer(task.vocab_size, slots, **ranges(task))
    batch = checks.draw(task, 300)
    table = reader.log_prob(batch.tokens)[batch.scored]
    held = table.amax(1) == 0
    # every key is asked for once, so that the share answered is exact in each sequence
    share = min(1, max(0, (slots - distractors) / task.pairs))
    assert held.double().mean() == pytest.approx(share)
    assert (table[held].argmax(1) == batch.targets[batch.scored][held]).all()
    kept = task.references()[f"slots_{slots}"].log_predictive(batch)
    assert torch.equal(kept.amax(1) == 0, held)


@pytest.mark.parametrize("decay", [0.9, 0.99, 1.0])
def test_outer_product_is_its_recurrence(decay):
    task = create("mqar", {"length": 40, "pairs": 5, "vocab_size": 40})
    reader = readers.OuterProduct(task.vocab_size, 16, decay, **ranges(task))
    tokens = checks.draw(task, 3).tokens
    found = reader.scores(tokens)
    for row, sequence in enumerate(tokens):
        memory = torch.zeros(16, task.vocab_size, dtype=torch.float64)
        for place, token in enumerate(sequence):
            memory *= decay
            if place and reader.written(tokens)[row, place]:
                memory[:, token] += reader.codes[sequence[place - 1]]
            expected = reader.codes[token] @ memory
            if expected.max() > 0:
                expected = expected / expected.max()
                torch.testing.assert_close(found[row, place], expected, rtol=1e-9, atol=1e-9)


def test_neutral_filler_changes_nothing_and_fresh_pairs_do():
    dials = {"vocab_size": 400, "length": 48, "pairs": 8, "filler": 0}
    near = create("mqar", dials)
    reader = readers.OuterProduct(near.vocab_size, 64, 0.97, **ranges(near))
    batch = checks.draw(near, 100)
    pairs, queries = batch.tokens[:, : near.start], batch.tokens[:, near.start :]
    blanks = torch.zeros(100, 400, dtype=torch.int64)
    spread = torch.cat([pairs, blanks, queries], 1)
    scored = torch.nn.functional.pad(batch.scored[:, near.start :], (spread.shape[1] - queries.shape[1], 0))
    assert torch.equal(reader.scores(spread)[scored], reader.scores(batch.tokens)[batch.scored])
    assert accuracy(reader, batch) > 0.95
    far = create("mqar", {**dials, "length": 248, "distractors": 100})
    assert accuracy(reader, checks.draw(far, 100)) < 0.3


def test_torch_and_numpy_readers_agree():
    pairs = numpy_readers.draw_pairs(30, 8, 32, 16, seed=3)
    scores = numpy_readers.outer_product_scores(pairs, 16, decay=0.98)
    reader = readers.OuterProduct(30 + 16, 32, 0.98, keys=(0, 30), values=(30, 46))
    reader.codes[:30] = torch.tensor(pairs.keys)
    context = np.stack([np.arange(30), 30 + pairs.values], 1).ravel()
    found = np.stack([reader.scores(torch.tensor([[*context, key]]))[0, -1, 30:].numpy() for key in range(8)])
    np.testing.assert_allclose(found, scores / scores.max(1, keepdims=True), atol=1e-9)


def test_a_reader_stands_in_for_a_model():
    reader = readers.RingBuffer(20, 4)
    tokens = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(0))
    logits = reader(tokens)
    assert logits.shape == (2, 9, 20)
    logits.square().sum().backward()
    assert [name for name, _ in reader.named_parameters()] == ["sharpness"]
    with pytest.raises(ValueError, match="empty or outside"):
        readers.Induction(10, keys=(4, 12))
    assert math.isclose(float(reader.log_prob(tokens)[0, 0].exp().max()), 1 / 20)
