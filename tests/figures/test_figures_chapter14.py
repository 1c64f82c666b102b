"""The chapter-14 figures: the numbers they draw, and their dials."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from figures import (
    FIGURES,
    composite_map,
    cost_frontier,
    decay_mistiming,
    design_space,
    fast_slow_layer,
    two_timescale_error,
    window_crossover,
)
from filters.fast_slow import NotHurwitz

MODULES = [
    composite_map,
    cost_frontier,
    decay_mistiming,
    design_space,
    fast_slow_layer,
    two_timescale_error,
    window_crossover,
]
FEW = {"sequences": 4, "length": 200}


def drawn(module, out, **dials):
    """The numbers of a figure, whose three files are there."""
    paths = module.draw(out, **dials)
    name = module.__name__.removeprefix("figures.")
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg", f"{name}.csv"]
    assert all(path.stat().st_size > 200 for path in paths)
    return pd.read_csv(paths[2])


@pytest.mark.parametrize("module", MODULES)
def test_figures_are_listed_with_all_their_dials(module):
    name = module.__name__.removeprefix("figures.")
    assert FIGURES[name] == module.__name__
    assert set(module.DIALS) == set(module.draw.__kwdefaults__ or {})


def test_cost_frontier_counts_as_the_book_does(tmp_path):
    """State-space book, Proposition 14.2: 24 blocks at d = w = 1024."""
    numbers = drawn(cost_frontier, tmp_path)
    assert 24 * cost_frontier.state_per_block(1 / 4, 1024, 1024) == 12_601_344
    assert 24 * cost_frontier.state_per_block(1 / 8, 1024, 1024) == 6_312_960
    full = numbers[numbers.model == "full attention"].floats.item()
    assert 24 * full == 3_221_225_472
    assert numbers[numbers.model == "Jamba"].fraction.item() == 1 / 8
    twice = drawn(cost_frontier, tmp_path, window=2048)
    assert twice[twice.model == "Samba"].floats.item() > numbers[numbers.model == "Samba"].floats.item()
    with pytest.raises(ValueError, match="window: 0 is below 1"):
        cost_frontier.draw(tmp_path, window=0)


def test_design_space_places_every_model_once(tmp_path):
    numbers = drawn(design_space, tmp_path)
    assert len(numbers) == numbers.model.nunique() == 11
    assert set(numbers.granularity) <= set(design_space.GRANULARITIES)
    assert set(numbers.trigger) == set(design_space.TRIGGERS) - {"loss"}


def test_fast_slow_layer_has_a_gap_of_order_epsilon_below_its_bound(tmp_path):
    numbers = drawn(fast_slow_layer, tmp_path)
    gaps = numbers[numbers.solution == "gap"]
    assert (gaps.gap <= gaps.gap_bound).all()
    first = gaps.iloc[:2]
    slope = np.diff(np.log(first.gap)) / np.diff(np.log(first.epsilon))
    assert slope.item() == pytest.approx(1, abs=0.05)
    exact = numbers[numbers.solution == "exact"]
    assert (exact.layer.abs() <= exact.layer_bound + 1e-12).all()
    with pytest.raises(NotHurwitz):
        fast_slow_layer.draw(tmp_path, d=1.0)


def test_mistimed_decay_costs_on_either_side(tmp_path):
    numbers = drawn(decay_mistiming, tmp_path, switch_rates=[0.02], factors=[0.25, 1, 4, 64], **FEW)
    assert list(numbers.excess > 1e-12) == [True, False, True]  # 64 x 0.02 is above 3/4
    assert numbers.forgetting_rate[1] == pytest.approx(0.02 * 4 / 3)


def test_composite_is_bayes_at_the_matched_rate(tmp_path):
    numbers = drawn(composite_map, tmp_path, widths=[1, 4], rates=[0.3], **FEW)
    assert (numbers[numbers.matched].excess < 1e-12).all()
    assert (numbers[~numbers.matched].excess > 1e-3).all()


@pytest.mark.slow
def test_two_timescale_error_draws_the_published_values(tmp_path):
    """State-space book, section 14.6."""
    numbers = drawn(two_timescale_error, tmp_path, switch_rates=[0.02], decay_switch_rate=0.2, **FEW)
    book = dict(zip(numbers.predictor, numbers.book_draw))
    assert f"{book['window 8']:.4f}" == "0.0246"
    assert f"{book['decay matched to 0.2']:.4f}" == "0.0512"
    assert f"{book['unigram']:.4f}" == "0.4965"
    assert (numbers.standard_error > 0).all()


@pytest.mark.slow
def test_window_crossover_crosses(tmp_path):
    numbers = drawn(window_crossover, tmp_path, overlaps=[1.0, 0.2], widths=[2, 16], sequences=16, length=300)
    table = numbers.pivot(index="overlap", columns="width", values="excess")
    assert table.loc[1.0, 2] > table.loc[0.2, 2]
    assert table.loc[1.0, 16] < table.loc[0.2, 16]
    assert numbers.groupby("overlap").identification_time.first().is_monotonic_decreasing


@pytest.mark.parametrize("rate", [0.0, 0.8, -1])
def test_dials_out_of_range_are_one_line(tmp_path, rate):
    with pytest.raises(ValueError, match=r"switch_rates: .* is not in \(0, 0.75\]; nearest"):
        two_timescale_error.draw(tmp_path, switch_rates=[0.01, rate])
    with pytest.raises(ValueError, match=r"widths: 2.5 is no whole number; nearest: 2"):
        window_crossover.draw(tmp_path, widths=[2.5])
    with pytest.raises(ValueError, match="length: 100 tokens leave nothing"):
        decay_mistiming.draw(tmp_path, length=100)
