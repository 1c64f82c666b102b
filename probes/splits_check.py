"""An exact check that no sequence is in two splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.config import Trial
from probes.splits import TrainingStream, evaluation_blocks
from probes.task import Batch, Task


class SplitOverlap(ValueError):
    """A sequence that is in two splits; the message names both, and the sequences' numbers."""


def assert_disjoint(splits: Mapping[str, Batch | Iterable[Batch]]) -> None:
    """Raises `SplitOverlap` if two splits hold the same sequence of tokens; within one split it may recur.

    `splits` maps names to batches, or to lists of them. Sequences are compared byte by byte, by way of a hash table of
    their tokens: O(sequences x length) time, and memory for the tokens of all splits once.
    """
    holders: dict[bytes, tuple[str, int]] = {}
    for name, batches in splits.items():
        number = 0
        for batch in [batches] if isinstance(batches, Batch) else batches:
            for row in batch.tokens.cpu().contiguous().numpy():
                holder, other = holders.setdefault(row.tobytes(), (name, number))
                if holder != name:
                    raise SplitOverlap(
                        f"sequence {number} of split {name!r} is sequence {other} of split {holder!r}; "
                        "take another data_seed, fewer train.examples, or dials with more different sequences"
                    )
                number += 1


def check_trial(task: Task, trial: Trial) -> None:
    """`assert_disjoint` of a trial's finite training set, its validation and its test split; fresh data passes."""
    if trial.train.examples is None:
        return
    seed, sizes = trial.seeds.data_seed, trial.evaluate
    stream = TrainingStream(task, seed, trial.train.batch_size, examples=trial.train.examples)
    assert stream.pool is not None
    assert_disjoint(
        {
            "train": stream.pool,
            "validation": evaluation_blocks(task, seed, "validation", sizes.validation_sequences),
            "test": evaluation_blocks(task, seed, "test", sizes.test_sequences),
        }
    )
