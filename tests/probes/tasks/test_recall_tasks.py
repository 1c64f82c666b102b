"""Every recall task against sampled truth: what a reference claims of a view must be so, cell by cell."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import recall_checks as checks
import torch

from probes.task import TaskError
from probes.tasks import create
from probes.tasks.recall import REPORTING, RecallTask

# kind, dials of an instance small enough to enumerate views by sampling, widths at which the window is tested
SMALL = {
    "mqar": (
        "mqar",
        {"vocab_size": 10, "length": 14, "pairs": 2, "distractors": 1, "filler": 1, "blanks": 1},
        [1, 4, 7, 8, 9, 10, 12],
    ),
    "mqar_near": (
        "mqar",
        {"vocab_size": 9, "length": 16, "pairs": 2, "gap_power": 0.3, "filler": 1},
        [3, 9, 10, 11, 12],
    ),
    "mqar_blank": ("mqar", {"vocab_size": 7, "length": 14, "pairs": 2, "filler": 0}, [5, 8, 9]),
    "copy": ("copy", {"vocab_size": 4, "string": 4, "blanks": 1}, [3, 5, 6]),
    "selective_copy": ("selective_copy", {"vocab_size": 4, "length": 10, "string": 3}, [3, 5, 8]),
    "selective_copy_forced": (
        "selective_copy",
        {"vocab_size": 6, "length": 9, "string": 3, "noise": 2, "teacher_forced": True},
        [3, 4, 5, 8],
    ),
    "induction": ("induction", {"vocab_size": 3, "length": 8}, [1, 2, 3, 5]),
    "phonebook": (
        "phonebook",
        {"entries": 3, "name_length": 2, "name_tokens": 2, "number_length": 2, "number_tokens": 2},
        [4, 7, 8, 9, 10, 11, 12, 13],
    ),
    "needle": (
        "needle",
        {
            "length": 17,
            "needles": 2,
            "filler": 1,
            "haystack": "repeated",
            "key_tokens": 3,
            "value_length": 2,
            "value_tokens": 2,
        },
        [4, 6, 8, 9, 10, 12, 14],
    ),
    "needle_depth": (
        "needle",
        {
            "length": 17,
            "needles": 2,
            "filler": 1,
            "haystack": "repeated",
            "key_tokens": 3,
            "value_length": 2,
            "value_tokens": 2,
            "depth": 0.4,
        },
        [6, 8, 10, 11, 12, 14],
    ),
    "needle_random": (
        "needle",
        {"length": 12, "needles": 2, "filler": 2, "key_tokens": 3, "value_tokens": 2},
        [3, 5, 7],
    ),
    "in_context_recall": ("in_context_recall", {"vocab_size": 6, "length": 12}, [1, 2, 3, 4, 5, 6, 7]),
    "noisy_recall": (
        "in_context_recall",
        {"vocab_size": 6, "length": 12, "noise": 0.3, "noise_tokens": 1},
        [1, 2, 3, 4, 5, 6, 7],
    ),
    "fuzzy_recall": ("fuzzy_recall", {"vocab_size": 4, "length": 9, "key_motif": 2, "value_motif": 2}, []),
    "fuzzy_recall_fixed": (
        "fuzzy_recall",
        {"vocab_size": 5, "length": 9, "key_motif": 2, "value_motif": 2, "vary_keys": False},
        [],
    ),
    "memorization": ("memorization", {"vocab_size": 8, "length": 6}, [1, 2]),
    "compression": ("compression", {"vocab_size": 4, "length": 5}, []),
}


def make(kind: str, **dials) -> RecallTask:
    return create(kind, dials)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("supervise", ["scored", "all"])
def test_references_are_normalised(name, supervise):
    kind, dials, widths = SMALL[name]
    task = make(
        kind, **dials, supervise=supervise, windows=[*widths, 3, 100], slots=[] if name == "memorization" else [1, 2]
    )
    batch = checks.draw(task, 60)
    checks.check_normalised(task, batch)
    assert batch.tokens.shape == (60, task.length)
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < task.vocab_size
    if supervise == "all":
        assert batch.scored.all()
    else:
        assert torch.equal(batch.scored, batch.latents["answers"])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("supervise", ["scored", "all"])
def test_nothing_is_rounded_to_single_precision(name, supervise):
    kind, dials, widths = SMALL[name]
    more = {"supervise": supervise, "windows": [*widths, 3], "slots": [] if name == "memorization" else [1, 2]}
    task = make(kind, **dials, **more, state_bits=[] if make(kind, **dials).load() is None else [1])
    batch = checks.draw(task, 40)
    found = [(one.log_prob(batch), one.log_predictive(batch)) for one in task.references().values()]
    try:
        torch.set_default_dtype(torch.float64)
        again = [(one.log_prob(batch), one.log_predictive(batch)) for one in task.references().values()]
    finally:
        torch.set_default_dtype(torch.float32)
    for key, one, other in zip(task.references(), found, again):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-13, atol=1e-15, err_msg=key)
        if one[1] is not None:
            np.testing.assert_allclose(one[1], other[1], rtol=1e-13, atol=1e-15, err_msg=key)


@pytest.mark.parametrize(("name", "width"), [(name, width) for name in SMALL for width in SMALL[name][2]])
def test_window_is_the_best_prediction_from_its_tokens(name, width):
    kind, dials, _ = SMALL[name]
    task = make(kind, **dials, windows=[width])
    checks.check_function_of(task, task.references()[f"window_{width}"], checks.last_tokens(width), 8_000)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "compression"])
def test_bayes_is_exact_at_every_position(name):
    kind, dials, _ = SMALL[name]
    task = make(kind, **dials, supervise="all")
    checks.check_function_of(task, task.references()["bayes"], checks.everything, 4_000)


def test_markov_bayes_is_exact():
    task = make("markov", vocab_size=2, length=6, windows=[1, 3, 20], concentration=0.7)
    checks.check_normalised(task, checks.draw(task, 60))
    checks.check_function_of(task, task.references()["bayes"], checks.everything, 4_000)


def test_compression_is_told_from_the_last_position():
    task = make("compression", vocab_size=4, length=5, windows=[1, 3, 9])
    for width in (1, 3, 9):
        # what the last position's window sees, and which position is asked for
        checks.check_function_of(
            task, task.references()[f"window_{width}"], lambda tokens, place, w=width: tokens[:, -w:], 8_000
        )
    assert task.head == {"kind": "position_mlp", "hidden": 128}


@pytest.mark.parametrize("name", SMALL)
def test_expectations_agree_with_sampling(name):
    kind, dials, widths = SMALL[name]
    task = make(kind, **dials, **({"windows": widths} if widths else {}))
    if task.expectations():
        checks.check_expectations(task)


@pytest.mark.parametrize("name", SMALL)
def test_windows_and_slots_are_monotone_and_end_at_bayes(name):
    kind, dials, _ = SMALL[name]
    sizes = [1, 2, 4, 6, 8, 12, 100]
    task = make(kind, **dials, windows=sizes, slots=[] if name == "memorization" else sizes)
    batch = checks.draw(task, 1000)
    for family in ("window", "slots"):
        losses = [
            -reference.log_prob(batch).sum(1) for key, reference in task.references().items() if key.startswith(family)
        ]
        for smaller, larger in pairwise(losses):
            difference = larger - smaller
            assert difference.mean() <= 4 * difference.std() / math.sqrt(len(batch)) + 1e-12
        if losses:
            np.testing.assert_allclose(losses[-1], 0, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_every_dial_changes_the_data(name):
    kind, dials, _ = SMALL[name]
    task = make(kind, **dials)
    tokens = checks.draw(task, 400).tokens.double()
    changed = {
        "vocab_size": 1, "length": 2, "pairs": -1, "distractors": 1, "blanks": 1, "filler": 1, "string": -1,
        "noise_tokens": 1, "entries": 1, "name_length": 1, "name_tokens": 1, "number_length": 1, "number_tokens": 1,
        "needles": -1, "key_tokens": 1, "value_length": 1, "value_tokens": 1, "table_seed": 1, "key_motif": -1,
        "value_motif": -1,
    }  # fmt: skip
    for dial, value in task.settings.items():
        if dial in REPORTING or dial in ("supervise", "head_hidden"):
            continue
        if dial in changed and value is not None:
            other = value + changed[dial]
        else:
            other = {
                "gap_power": 0.05, "filler": 2, "noise": 1 if kind == "selective_copy" else 0.6, "depth": 0.9,
                "haystack": "random", "teacher_forced": not value, "vary_keys": not value,
            }[dial]  # fmt: skip
            if dial == "haystack" and value == "random":
                other = "repeated"
        extra = {"noise_tokens": 1} if dial == "noise" and kind == "in_context_recall" else {}
        if dial == "haystack":
            extra = {"filler": 3}
            tokens = checks.draw(make(kind, **{**dials, **extra}), 400).tokens.double()
        other_task = make(kind, **{**dials, **extra, dial: other})
        batch = checks.draw(other_task, 400)
        same_shape = batch.tokens.shape == tokens.shape
        targets = checks.draw(task, 400).targets
        assert (
            not same_shape or not torch.equal(batch.tokens.double(), tokens) or not torch.equal(batch.targets, targets)
        ), dial


def test_supervision_is_a_dial_of_the_targets():
    for kind, dials, _ in SMALL.values():
        scored, everything = (checks.draw(make(kind, **dials, supervise=mode), 20) for mode in ("scored", "all"))
        assert torch.equal(scored.tokens, everything.tokens)
        assert torch.equal(scored.targets[scored.scored], everything.targets[scored.scored])


@pytest.mark.parametrize("name", SMALL)
def test_longer_evaluations(name):
    kind, dials, _ = SMALL[name]
    if kind == "phonebook":
        dials = {**dials, "name_tokens": 4}
    task = make(kind, **dials, extrapolate=[2, 4])
    longer = task.evaluations()
    if "longest_keys" in longer:
        assert not longer.pop("longest_keys").vary_keys
    assert list(longer) == ["length_x2", "length_x4"]
    for factor, other in zip((2, 4), longer.values()):
        assert other.vocab_size == task.vocab_size
        assert abs(other.length - factor * task.length) <= factor * 8
        assert other.length > task.length
        assert not any(name.startswith("length") for name in other.evaluations())


@pytest.mark.parametrize(
    ("kind", "dials", "message"),
    [
        ("mqar", {"pairs": 500, "length": 4000}, "pairs = 500: more pairs than the 111 keys; nearest valid is 111"),
        (
            "mqar",
            {"pairs": 20},
            "pairs = 20: too many for length = 64, with their queries; nearest valid is 16, or length = 80",
        ),
        ("mqar", {"pair": 20}, "unknown dial 'pair'; nearest is 'pairs'"),
        ("mqar", {"gap_power": 0}, "gap_power = 0: input should be greater than 0"),
        ("mqar", {"filler": 254}, "filler = 254: no tokens are left for keys and values; nearest valid is 253"),
        ("mqar", {"windows": [0]}, "windows.0 = 0: input should be greater than or equal to 1"),
        ("memorization", {"slots": [2]}, "slots = [2]: there is nothing to keep in slots; nearest valid is []"),
        ("needle", {"state_bits": [8]}, "state_bits = [8]: no bound is known for this task; nearest valid is []"),
        ("copy", {"string": 0}, "string = 0: input should be greater than or equal to 1"),
        (
            "selective_copy",
            {"string": 40},
            "string = 40: too many for length = 64, data tokens twice; nearest valid is 31, or length = 81",
        ),
        ("phonebook", {"extrapolate": [9]}, "entries = 72: more entries than the 64 keys; nearest valid is 64"),
        ("phonebook", {"entries": 65}, "entries = 65: more entries than the 64 keys; nearest valid is 64"),
        (
            "needle",
            {"length": 8, "needles": 4},
            "needles = 4: too many for length = 8, 3 tokens each, and the query; nearest valid is 2, or length = 14",
        ),
        ("in_context_recall", {"length": 7}, "length = 7: pairs take two tokens each; nearest valid is 8"),
        ("in_context_recall", {"noise": 0.2}, "noise_tokens = 0: noise = 0.2 needs tokens of its own"),
        ("fuzzy_recall", {"key_motif": 9}, "key_motif = 9: a key has distinct tokens, of 7; nearest valid is 7"),
        ("markov", {"burn_in": 128}, "burn_in = 128: no position is left to score; nearest valid is 127"),
        ("markov", {"concentration": -1}, "concentration = -1: input should be greater than 0"),
    ],
)
def test_impossible_dials_are_one_clear_error(kind, dials, message):
    with pytest.raises(TaskError) as caught:
        make(kind, **dials)
    assert str(caught.value).startswith(f"{kind}: {message}")


@pytest.mark.parametrize(
    ("kind", "dials"),
    [
        ("mqar", {"length": 80, "pairs": 20}),
        ("mqar", {"pairs": 111, "length": 4000}),
        ("selective_copy", {"string": 40, "length": 81}),
        ("needle", {"length": 14, "needles": 4}),
        ("fuzzy_recall", {"key_motif": 7}),
    ],
)
def test_the_nearest_valid_choice_is_valid(kind, dials):
    assert checks.draw(make(kind, **dials), 4).latents["answers"].shape[0] == 4
