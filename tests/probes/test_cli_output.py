"""What the commands print: the pace of a sweep, tables with their errors, and what a reader must be told."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from probes import cli_common, cli_modes, cli_report
from probes.cli_common import number
from probes.cli_list import trials
from probes.cli_progress import Bar, Pace, duration
from probes.config import Suite


def event(name: str, step: int, steps: int = 10, excess: float = math.nan) -> Any:
    return SimpleNamespace(
        trial=name, name=f"two_timescale-{name}-s0-0123456789ab", step=step, steps=steps, excess=excess
    )


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    for module in (cli_report, cli_common):
        monkeypatch.setattr(module, "console", Console(file=text, width=160, highlight=False))
    return text


def test_the_pace_counts_only_what_was_done_since_the_start() -> None:
    now = [100.0]
    pace = Pace(400, done=100, clock=lambda: now[0])
    assert pace.seconds_left() is None
    pace.see("resumed", 41)
    assert (pace.done, pace.seconds_left()) == (141, None)
    now[0] = 110.0
    pace.see("resumed", 51)
    pace.see("other", 1)
    pace.see("other", 10)
    assert pace.done == 161
    assert pace.seconds_left() == pytest.approx((400 - 161) * 10 / (11 + 10))


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--"), (0.4, "0:00"), (59.6, "1:00"), (125, "2:05"), (3723, "1:02:03")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_without_a_terminal_each_finished_trial_is_one_line() -> None:
    text = io.StringIO()
    with Bar(Console(file=text, width=100), trials=3, finished=1, steps=10) as bar:
        for step in range(1, 11):
            bar(event("gdn", step, excess=0.25))
            bar(event("ema", step))
        bar(event("ema", 10))
    first, second = text.getvalue().splitlines()
    assert first.startswith("2/3 two_timescale-gdn-s0: 10 steps, validation excess 0.2500, time left ")
    assert second.startswith("3/3 two_timescale-ema-s0: 10 steps, ")


def test_on_a_terminal_the_bar_shows_trial_step_excess_and_time_left() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True, color_system=None)
    with Bar(console, trials=3, finished=0, steps=10) as bar:
        bar(event("gdn", 4, excess=0.125))
        bar.progress.refresh()
    shown = text.getvalue()
    for part in ("two_timescale-gdn-s0", "4/10", "excess 0.1250", "time left", "0/3"):
        assert part in shown


@pytest.mark.parametrize(
    ("values", "text"),
    [((0.02461, 0.0003), "0.02461 ± 0.00030"), ((1.0,), "1.0000"), ((None,), "–"), ((math.nan, 0.1), "–"),
     ((0.5, math.nan), "0.5000"), ((0.5, 0.0), "0.5000 ± 0.0000"), ((0.5, 0.013), "0.5000 ± 0.0130"),
     ((0.0037004, 2.24e-5), "0.003700 ± 0.000022"), ((3.05e-7, 4e-8), "3.0e-07 ± 4.0e-08"),
     ((-0.5, 4e-8), "-0.500000000 ± 0.000000040"), ((0.5, math.inf), "0.5000 ± inf"),
     ((1.791759469, 2.8e-17), "1.7918 ± 0.0000")],
)  # fmt: skip
def test_numbers(values: tuple[float | None, ...], text: str) -> None:
    assert number(*values) == text


def test_the_number_of_trials_of_a_suite() -> None:
    suite = Suite(
        tasks=["a"], architectures=["b", "c"], learning_rates=[1, 2, 3, 4], seeds=[0, 1, 2], grid={"task.x": [1, 2]}
    )
    assert trials(suite) == 2 * 2 * (4 + 2)


def row(architecture: str, **changes: Any) -> dict[str, Any]:
    base = {
        "status": "ok", "error": "", "task": "two_timescale", "point": "", "architecture": architecture,
        "model_seed": 0, "lr": 1e-3, "chosen": True, "lr_at_edge": False, "excess": 0.1,
        "excess_se": 0.01, "excess_sampled": 0.11,
        "excess_sampled_se": 0.02, "agreement": 0.01, "agreement_se": 0.01, "accuracy": 0.5, "accuracy_se": 0.01,
        "behaves_like": "window_8", "still_improving": False, "parameters": 12345,
        "reference.bayes.excess": 0.0, "reference.bayes.excess_se": 0.0, "reference.bayes.accuracy": 0.6,
        "reference.bayes.is_bound": False, "reference.fixed_decay_0.2.excess": 0.05,
        "reference.fixed_decay_0.2.excess_se": 0.001, "reference.fixed_decay_0.2.accuracy": 0.55,
        "reference.fixed_decay_0.2.is_bound": False,
    }  # fmt: skip
    return base | changes


def test_the_table_shows_scores_and_references(printed: io.StringIO) -> None:
    cli_report.print_rows(pd.DataFrame([row("gdn"), row("attention", lr=3e-3, chosen=False)]))
    lines = [line.split() for line in printed.getvalue().splitlines() if line.strip()]
    assert [
        "gdn",
        "0",
        "0.001",
        *["0.1000", "±", "0.0100", "0.1100", "±", "0.0200", "0.5000", "±", "0.0100", "window_8", "–", "12,345"],
    ] in lines
    assert ["fixed_decay_0.2", "0.0500", "±", "0.0010", "0.5500"] in lines
    assert ["bayes", "0", "0.6000"] in lines
    assert not any(line[0] == "attention" for line in lines)


def test_references_are_means_over_the_test_sets_of_the_rows(printed: io.StringIO) -> None:
    key = "reference.fixed_decay_0.2.excess"
    field = {f"reference.receptive_field.{name}": value for name, value in
             (("excess", 0.04), ("excess_se", 0.001), ("accuracy", 0.5), ("is_bound", False),
              ("margin", 0.01), ("margin_se", 0.01))}  # fmt: skip
    rows = [row(name, model_seed=seed, test_digest=str(seed)) | {key: excess, "receptive_field": None}
            for name in ("gdn", "attention") for seed, excess in enumerate((0.05, 0.07))]  # fmt: skip
    rows.append(row("sliding", test_digest="0") | field | {"receptive_field": 7, key: 0.05})
    cli_report.print_rows(pd.DataFrame(rows))
    text = printed.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert "exact references, mean over 2 test sets ± s.e. over sequences" in text
    assert ["fixed_decay_0.2", "0.06000", "±", "0.00071", "0.5500"] in lines
    assert ["receptive_field,", "7", "tokens", "(sliding)", "0.0400", "±", "0.0010", "0.5000"] in lines


@pytest.mark.parametrize(
    ("farther", "error", "shown"),
    [(1e-7, None, "bayes +1"), (0.015, None, "bayes +1"), (0.025, None, "window_8"), (0.0025, 0.001, "window_8"),
     (0.0025, 0.0013, "bayes +1"), (0.0009, 1e-9, "bayes +1")],
)  # fmt: skip
def test_a_reference_that_is_not_separated_from_the_nearest_is_tied(
    printed: io.StringIO, farther: float, error: float | None, shown: str
) -> None:
    """Beyond two paired standard errors (else of the excess, here 0.01) and a hundredth of the distance, here 0.1."""
    found = row("gdn") | {"reference.window_8.to_model": 0.1, "reference.bayes.to_model": 0.1 + farther}
    if error is not None:
        found |= {"reference.window_8.farther_se": 0.0, "reference.bayes.farther_se": error}
    cli_report.print_rows(pd.DataFrame([found]))
    text = printed.getvalue()
    (line,) = [line for line in text.splitlines() if "12,345" in line]
    assert f" {shown}  " in line
    assert "0.1000   " in line
    assert ("bayes +1: window_8" in text) == ("+" in shown)
    assert ("no paired one is recorded" in text) == ("+" in shown and error is None)


def test_the_search_is_shown_when_asked_for(printed: io.StringIO) -> None:
    rates = [row("gdn", lr=lr, chosen=lr == 3e-3, validation_excess=9 * lr) for lr in (1e-2, 3e-3)]
    rows = pd.DataFrame([*rates, row("gdn", lr=3e-3, model_seed=1)])
    cli_report.print_rows(rows)
    assert "0.01 " not in printed.getvalue()
    cli_report.print_rows(rows, search=True)
    lines = [line.split() for line in printed.getvalue().splitlines()]
    tried = [line[1:5] for line in lines[lines.index(["learning", "rates", "tried"]) :] if line[:1] == ["gdn"]]
    assert tried[:2] == [["0", "0.003", "chosen", "0.0270"], ["0", "0.01", "0.0900", "0.1000"]]


def test_names_and_numbers_are_never_cut(printed: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_common, "console", Console(file=printed, width=40, highlight=False))
    cli_report.print_rows(pd.DataFrame([row("gdn", behaves_like="a_reference_with_a_long_name")]))
    assert "a_reference_with_a_long_name" in printed.getvalue()


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"status": "diverged", "error": "loss is nan at step 3"},
            "gdn (seed 0): diverged at learning rate 0.001: loss is nan",
        ),
        ({"agreement": -0.05}, "has it seen its targets?"),
        ({"lr_at_edge": True}, "the chosen learning rate is an end of the grid"),
        ({"still_improving": True}, "still improving at its end"),
    ],
)
def test_what_a_reader_must_know_is_said(printed: io.StringIO, changes: dict[str, Any], note: str) -> None:
    others = [row("gdn", lr=rate, chosen=False) for rate in (3e-3, 1e-2)]
    cli_report.print_rows(pd.DataFrame([row("gdn", **changes), row("ema"), *others]))
    assert note in printed.getvalue()


def test_a_table_in_which_all_failed_says_so(printed: io.StringIO) -> None:
    whole = row("gdn", status="failed", error="no memory")
    failed = {key: whole[key] for key in ("task", "point", "architecture", "model_seed", "lr", "status", "error")}
    cli_report.print_rows(pd.DataFrame([failed]))
    assert "gdn (seed 0): failed at learning rate 0.001: no memory" in printed.getvalue()


def test_a_clean_table_has_no_notes(printed: io.StringIO) -> None:
    cli_report.print_rows(pd.DataFrame([row("gdn")]))
    assert "(seed 0)" not in printed.getvalue()


def test_a_note_on_several_trials_is_one_line(printed: io.StringIO) -> None:
    cli_report.print_rows(pd.DataFrame([row("gdn", still_improving=True), row("ema", still_improving=True)]))
    (line,) = [line for line in printed.getvalue().splitlines() if "still improving" in line]
    assert line.startswith("gdn (seed 0), ema (seed 0): still improving")


def test_the_spread_over_seeds_is_a_table_of_its_own(printed: io.StringIO) -> None:
    values = {"gdn": (0.1, 0.2, 0.3), "ema": (0.05, 0.05, 0.05)}
    rows = [row(name, model_seed=i, excess=x) for name, three in values.items() for i, x in enumerate(three)]
    cli_report.print_rows(pd.DataFrame(rows))
    text = printed.getvalue()
    assert "nats over bayes, over seeds; a ranking rests on 5 seeds or more" in text
    lines = [line.split() for line in text.splitlines()]
    place = lines.index(["ema", "3", "0.0500", "0.0000", "0.0000"])
    assert lines[place + 1] == ["gdn", "3", "0.2000", "0.1000", "0.0577"]


def test_probes_are_printed_for_trials_that_have_them(printed: io.StringIO) -> None:
    scores = {"kl": 0.5, "explained": 0.25, "explained_se": 0.0123}
    probed = {f"readout.regime.layer_{layer}.{name}": value for layer in range(11) for name, value in scores.items()}
    cli_report.print_rows(pd.DataFrame([row("ema"), row("gdn") | probed]))
    text = printed.getvalue()
    assert "linear probes for the regime" in text
    tail = [line.split() for line in text[text.index("linear probes") :].splitlines()]
    lines = [line for line in tail if "gdn" in line]
    assert [line[2] for line in lines] == ["embedding", *map(str, range(1, 10)), "final"]
    assert lines[1] == ["gdn", "0", "1", "0.5000", "0.2500", "±", "0.0123"]
    assert not any("ema" in line for line in tail)


def test_modes_are_printed_for_trials_that_have_them(printed: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"architecture": "oryx_tm", "model_seed": 0}
    for name, fraction, excess in (("attention", 1.0, 0.25), ("linear", 0.0, 0.5), ("mixed", 0.25, 0.375)):
        prefix = f"variant.{name}"
        found |= {f"{prefix}.metric.attention_fraction": fraction, f"{prefix}.excess": excess}
        found |= {f"{prefix}.excess_se": 0.01, f"{prefix}.accuracy": 0.5}
    other = {"architecture": "gdn", "model_seed": 0}
    cli_modes.print_modes(pd.DataFrame([other, found]))
    lines = [line.split() for line in printed.getvalue().splitlines() if "oryx_tm" in line]
    assert [line[2:5] for line in lines] == [
        ["linear", "0", "0.5000"],
        ["mixed", "25", "0.3750"],
        ["attention", "100", "0.2500"],
    ]
    assert "gdn" not in printed.getvalue()
    before = printed.getvalue()
    cli_modes.print_modes(pd.DataFrame([other]))
    assert printed.getvalue() == before


def test_a_sweep_without_its_table_shows_the_best_learning_rate_so_far():
    row = {"task": "t", "point": "", "status": "ok"}
    rows = pd.DataFrame(
        [
            {**row, "architecture": name, "lr": lr, "model_seed": seed, "validation_excess": excess}
            for name, lr, seed, excess in (
                ("a", 1e-3, 0, 0.3),
                ("a", 2e-3, 0, 0.2),
                ("a", 2e-3, 1, 0.5),
                ("a", 1e-3, 1, 0.1),  # not of the first seed: it chooses nothing
                ("b", 1e-3, 0, 0.3),
            )
        ]
    )
    assert cli_report._choose(rows)
    assert rows["chosen"].tolist() == [False, True, True, False, True]
    alone = rows[rows["lr"] == 1e-3].copy()
    assert not cli_report._choose(alone)
    assert not alone["chosen"].any()


def test_the_report_of_a_folder_without_a_table_says_so_and_tells_recipes_apart(tmp_path, capsys):
    recorded = Path(__file__).parents[2] / "docs/recorded/two_timescale_512/trials"
    places = sorted(recorded.glob("two_timescale-gdn-s0-*"))[:2]
    for place in places:
        shutil.copytree(place, tmp_path / "trials" / place.name)
    cli_report.print_report(tmp_path)
    said = capsys.readouterr().out
    assert "This sweep has not ended" in said
    assert "train.steps" not in said
    path = tmp_path / "trials" / places[0].name / "trial.json"
    trial = json.loads(path.read_text())
    trial["train"]["steps"] += 1
    path.write_text(json.dumps(trial))
    cli_report.print_report(tmp_path)
    said = capsys.readouterr().out
    assert "train.steps=4000" in said
    assert "train.steps=4001" in said
