"""Means of the window reference of `probes.tasks.entries`, in closed form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from probes.tasks.recall import Expectation

if TYPE_CHECKING:
    from probes.tasks.entries import EntriesTask


def expected_window(task: EntriesTask, width: int) -> Expectation:
    """Mean log-loss and accuracy of the window over everything random, per answer, in closed form.

    Sums over the digit asked for, over whether the window's first cell holds an entry, over the number of whole keys
    in sight (hypergeometric) and over the number of them that end as the cut key does (hypergeometric too).
    """
    loss = right = 0.0
    for digit in range(task.value_length):
        first = max(0, task.query + task.key_length + digit - width + 1)
        key_at = [task.offset + cell * task.entry + int(task.marker) for cell in range(task.cells)]
        after = sum(at >= first for at in key_at)
        lost = [first - at for at in key_at if at < first < at + task.key_length + task.value_length]
        if task.depth is not None:
            asked = round(task.depth * (task.cells - 1))
            read = key_at[asked] >= first or 0 < first - key_at[asked] <= task.key_length + digit
            part = _Answer(0.0, 1.0) if read else _level(task)
        else:
            part = _over_cells(task, digit, after, lost[0] if lost else 0)
        loss, right = loss + part.loss / task.value_length, right + part.right / task.value_length
    return Expectation(loss, right)


class _Answer(NamedTuple):
    """Contributions to mean log-loss and accuracy."""

    loss: float
    right: float


def _level(task: EntriesTask) -> _Answer:
    return _Answer(math.log(task.value_tokens), 1 / task.value_tokens)


def _over_cells(task: EntriesTask, digit: int, after: int, lost: int) -> _Answer:
    """`after`: cells whose keys are in sight; `lost`: tokens of the first cell's entry out of sight, 0 without one."""
    loss = right = 0.0
    cells, entries = task.cells, task.entries
    for occupied in (0, 1) if lost else (0,):
        pool, left = cells - (1 if lost else 0), entries - occupied
        chance = 1.0 if not lost else (entries / cells if occupied else 1 - entries / cells)
        if chance == 0 or left > pool:
            continue
        for whole in range(max(0, left - (pool - after)), min(after, left) + 1):
            share = chance * _hypergeometric(whole, pool, after, left)
            hidden = entries - whole - occupied
            part = _over_ends(task, digit, lost, whole, hidden) if occupied else _level(task)
            unseen = (entries - whole) / entries
            loss += share * unseen * part.loss
            right += share * (1 - unseen + unseen * part.right)
    return _Answer(loss, right)


def _over_ends(task: EntriesTask, digit: int, lost: int, whole: int, hidden: int) -> _Answer:
    """Given that the key asked for is out of sight, and an entry is cut: over what is seen of it."""
    lost_key, lost_value = min(lost, task.key_length), max(0, lost - task.key_length)
    if lost_value > digit:
        return _level(task)
    size, unseen = task.value_tokens, 1 + hidden
    log_other, chances = math.log(size), task.words - 1
    alike = task.key_tokens**lost_key - 1
    agreeing = digit - lost_value
    loss = right = 0.0
    for same in range(min(whole, alike) + 1):
        if whole - same > chances - alike:
            continue
        share = _hypergeometric(same, chances, alike, whole)
        ways = (alike - same) / max(1, chances - whole)
        # an entry out of sight, asked for while the cut one agrees by chance, against the cut one itself
        by_chance = hidden * ways * size**-agreeing
        suspicion = 1 / (1 + by_chance)
        named = suspicion + (1 - suspicion) / size
        other = (1 - suspicion) / size
        truly = 1 / unseen
        chance = by_chance / unseen
        entropy = -truly * math.log(named) + chance * (-math.log(named) / size)
        if other > 0:
            entropy -= chance * (size - 1) / size * math.log(other)
        rest = 1 - truly - chance
        loss += share * (entropy + rest * log_other)
        right += share * ((truly + chance / size) + rest / size)
    return _Answer(loss, right)


def _hypergeometric(count: int, population: int, marked: int, drawn: int) -> float:
    if count > marked or drawn - count > population - marked or count > drawn:
        return 0.0
    return math.comb(marked, count) * math.comb(population - marked, drawn - count) / math.comb(population, drawn)
