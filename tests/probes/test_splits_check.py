from __future__ import annotations

import pytest
import torch

from probes.config import Trial
from probes.splits_check import SplitOverlap, assert_disjoint, check_trial
from probes.task import Batch
from probes.tasks import create


def batch(*rows):
    tokens = torch.tensor(rows)
    return Batch(tokens, tokens)


def test_disjoint_splits_pass_and_a_split_may_repeat_itself():
    assert_disjoint({"train": [batch([1, 2], [1, 2]), batch([3, 4])], "test": batch([2, 1], [4, 3])})


def test_one_common_sequence_is_named():
    splits = {
        "train": [batch([1, 2]), batch([3, 4], [5, 6])],
        "validation": batch([9, 9]),
        "test": batch([0, 0], [5, 6]),
    }
    with pytest.raises(SplitOverlap, match=r"^sequence 1 of split 'test' is sequence 2 of split 'train'; "):
        assert_disjoint(splits)


def test_a_trial_with_a_small_space_of_sequences_is_refused():
    def trial(task, examples):
        described = {"kind": task.name, "version": task.version, "settings": task.settings}
        small = {"validation_sequences": 20, "test_sequences": 20}
        return Trial(
            task=described, architecture={}, train={"examples": examples}, evaluate=small, seeds={"data_seed": 0}
        )

    few = create("copy", {"vocab_size": 4, "string": 3})
    many = create("copy", {"vocab_size": 34, "string": 16})
    check_trial(few, trial(few, None))
    check_trial(many, trial(many, 50))
    with pytest.raises(SplitOverlap, match="of split 'validation' is sequence"):
        check_trial(few, trial(few, 50))
