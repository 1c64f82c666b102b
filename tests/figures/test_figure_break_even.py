"""The break-even figure draws the inequalities that the accounting has."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from architectures.accounting import break_even as accounts
from figures import FIGURES, break_even


def test_the_figure_has_the_accounts_numbers(tmp_path):
    paths = break_even.draw(tmp_path)
    assert [path.name for path in paths] == ["break_even.png", "break_even.svg", "break_even.csv"]
    assert all(path.stat().st_size > 1000 for path in paths)
    numbers = pd.read_csv(paths[2])
    gates = {"entropy": accounts.lm_head_flops(128256, 2048), "router": accounts.router_flops(2048)}
    for row in numbers.itertuples():
        assert row.gate_flops == gates[row.gate]
        projections = row.counted == "projections"
        expected = accounts.break_even_length(row.firing_rate, row.gate_flops, 2048, projections=projections)
        assert row.tokens == pytest.approx(expected, rel=1e-12)
    native = numbers[(numbers.gate == "entropy") & (numbers.firing_rate == 0.4)].tokens
    assert list(native) == pytest.approx([106880, 104832], rel=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("length", [10, 3072, 200_000])
@pytest.mark.parametrize("gate", [2_102_272, 525_336_576])
def test_the_colour_turns_where_the_gate_pays(rate, length, gate):
    pays = accounts.saves(length, rate, gate, 2048, projections=True)
    assert (break_even.saving(length, rate, gate, 2048) > 0) == pays
    for projections in (False, True):
        skipped = break_even.skipped(length, 2048, projections=projections)
        assert skipped == accounts.skipped_flops(length, 2048, projections=projections)
    assert math.isinf(break_even.break_even(1.0, gate, 2048, projections=False))


def test_bad_dials_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"firing_rate: 1 is not in \[0, 1\)"):
        break_even.draw(tmp_path, firing_rate=1)
    with pytest.raises(ValueError, match="longest: 10 tokens is not above shortest 256; nearest: 257"):
        break_even.draw(tmp_path, longest=10)
    assert FIGURES["break_even"] == "figures.break_even"
