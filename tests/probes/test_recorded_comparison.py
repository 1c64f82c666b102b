"""The recorded comparison at length 512: whole, sound by its own columns, and what the documents say of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from figures import results as recorded
from probes import cli_report
from probes.catalogue import load_catalogue
from probes.cli_common import number
from probes.cli_references import tied
from probes.results import read_table, single_runs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/recorded/two_timescale_512"
SUITE = "two_timescale_512"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return read_table(FOLDER)


@pytest.fixture(scope="module")
def seeds(table: pd.DataFrame) -> pd.DataFrame:
    """By task and architecture: learning rate, mean, s.d. over seeds, largest s.e. over sequences."""
    parts = table[table.chosen].groupby(["task", "architecture"])
    return parts.agg(
        lr=("lr", "first"),
        parameters=("parameters", "first"),
        state=("state_bytes", "first"),
        mean=("excess", "mean"),
        spread=("excess", "std"),
        error=("excess_se", "max"),
    )


def test_every_trial_of_the_suite_is_there_once(table: pd.DataFrame) -> None:
    suite = load_catalogue().suite(SUITE)
    assert set(table.task) == set(suite.tasks)
    assert set(table.architecture) == set(suite.architectures)
    for _, part in table.groupby(["task", "architecture"]):
        searched = part[part.model_seed == suite.seeds[0]]
        assert sorted(searched.lr) == sorted(suite.learning_rates)
        assert sorted(part[part.chosen].model_seed) == sorted(suite.seeds)
        assert part[part.chosen].lr.iloc[0] == searched.loc[searched.validation_excess.idxmin(), "lr"]
    folders = {path.name for path in (FOLDER / "trials").iterdir()}
    assert folders == set(table.folder)
    assert len(table) == len(folders)


def test_the_table_is_that_of_its_trials(table: pd.DataFrame) -> None:
    rows = {row["folder"]: row for row in single_runs(FOLDER)}
    for _, row in table.iterrows():
        one = rows[row["folder"]]
        assert (one["trial"], one["excess"], one["behaves_like"]) == (row["trial"], row["excess"], row["behaves_like"])


def test_batches_were_fresh_and_no_target_was_seen(table: pd.DataFrame) -> None:
    assert set(table.status) == {"ok"}
    assert set(table["env.engine"]) == {"graph"}
    for _, row in table.iterrows():
        last = recorded.curves(FOLDER, row["folder"])["train_loss"][-1]
        assert abs(last - row["nll"]) < (0.008 if row["architecture"] == "attention" else 0.004)
    assert (table.agreement.abs() <= 3 * table.agreement_se).all()


def test_the_report_says_nothing_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    cli_report.print_report(FOLDER)
    said = capsys.readouterr().out
    assert "not ended" not in said
    assert "a ranking rests on" not in said
    assert "two_timescale_slow" in said
    assert "over seeds" in said
    assert "± 0.0000 " not in said


def test_the_report_has_the_documents_references_and_all_trials(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    cli_report.print_report(FOLDER, search=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    means = [line[1] for line in lines if line[:1] == ["window_8_stationary"] and len(line) == 5]
    found = table[table.chosen].groupby("task")["reference.window_8_stationary.excess"].mean()
    assert [float(mean) for mean in means] == [round(value, 6) for value in found]
    assert len([line for line in lines if line[:2] == ["receptive_field,", "7"]]) == 2
    for _, row in table.iterrows():
        excess = number(row["excess"], row["excess_se"]).split()[0]
        start = [row["architecture"], str(row["model_seed"]), f"{row['lr']:g}"]
        assert any(line[:3] == start and excess in line for line in lines), start


def test_no_recurrent_model_of_the_first_task_is_given_one_of_two_equal_predictors(table: pd.DataFrame) -> None:
    part = table[table.chosen & (table.task == "two_timescale") & ~table.architecture.isin(["attention", "sliding"])]
    for _, row in part.iterrows():
        assert tied(row) == ["bayes", "window_64", "window_64_stationary"]


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """A table's rows by their first cell: the table whose first heading begins with `title`."""
    found: dict[str, list[str]] = {}
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] == title:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not set(cells[0]) <= set("- "):
            found[re.split("[ ,]", cells[0])[0]] = cells[1:]
    return found


@pytest.mark.parametrize("task", ["two_timescale", "two_timescale_slow"])
def test_the_document_has_the_records_numbers(task: str, seeds: pd.DataFrame, table: pd.DataFrame) -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    shown = rows_of(text, task)
    assert set(shown) == set(seeds.loc[task].index)
    for name, cells in shown.items():
        row = seeds.loc[(task, name)]
        cost = [f"{int(row.parameters):,}", f"{int(row.state):,}"] if task == "two_timescale" else []
        numbers = [*cost, f"{row['mean']:.4f}", f"{row.spread:.4f}", f"{row.error:.5f}"]
        assert cells[0].split(",")[0] == f"{row.lr:g}"
        assert ("grid's end" in cells[0]) == bool(
            table[(table.task == task) & (table.architecture == name)].lr_at_edge.any()
        )
        assert cells[1 : 1 + len(numbers)] == numbers
    means = [float(cells[-4]) for cells in shown.values()]
    assert means == sorted(means)


def test_the_readme_has_them_too(seeds: pd.DataFrame) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {tuple(re.findall(r"\d\.\d{4} ± \d\.\d{4}", line)) for line in text.splitlines() if " ± 0." in line}
    tasks = ["two_timescale", "two_timescale_slow"]
    for name in seeds.loc[tasks[0]].index:
        rows = [seeds.loc[(task, name)] for task in tasks]
        assert tuple(f"{row['mean']:.4f} ± {row.spread:.4f}" for row in rows) in shown


def test_the_references_in_the_document(table: pd.DataFrame) -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    names = ("window_64", "composite_8_0.2", "window_8_stationary", "window_8", "receptive_field", "fixed_decay_0.2",
             "window_1_stationary", "window_1", "unigram")  # fmt: skip
    for task, part in table[table.chosen].groupby("task"):
        cells = re.search(rf"^\| {task} \| ((?:[\d.e-]+ \| ){{8}}[\d.e-]+) \|$", text, re.MULTILINE)
        assert cells is not None
        found = [float(cell) for cell in cells[1].split(" | ")]
        expected = [part[f"reference.{name}.excess"].mean() for name in names]
        np.testing.assert_allclose(found, expected, atol=6e-5)


def test_the_paired_differences_in_the_document(table: pd.DataFrame) -> None:
    """All pairs of the recurrent models; bold beyond the 97.5% quantile of Student's t with four degrees of freedom."""
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) - (\w+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert len({frozenset(row[:2]) for row in rows}) == len(rows) == 10
    chosen = table[table.chosen]
    for first, second, *cells in rows:
        for task, cell in zip(("two_timescale", "two_timescale_slow"), cells, strict=True):
            by_seed = chosen[chosen.task == task].pivot(index="model_seed", columns="architecture", values="excess")
            difference = by_seed[first] - by_seed[second]
            error = difference.std() / len(difference) ** 0.5
            said = f"{difference.mean():.5f} ± {error:.5f} ({(difference > 0).sum()})"
            assert cell == (f"**{said}**" if abs(difference.mean()) > 2.776 * error else said)
    for name in ("attention", "sliding"):
        for _, part in chosen.groupby("task"):
            by_seed = part.pivot(index="model_seed", columns="architecture", values="excess")
            others = by_seed.drop(columns=name).sub(by_seed[name], axis=0)
            assert (others.mean().abs() > 2.776 * others.sem()).all()


def test_what_the_document_says_models_behave_like(table: pd.DataFrame) -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    words = {"the best of its receptive field": "receptive_field", "fixed decay": "fixed_decay_0.2"}
    for task in ("two_timescale", "two_timescale_slow"):
        for name, cells in rows_of(text, task).items():
            part = table[table.chosen & (table.task == task) & (table.architecture == name)]
            said = {words.get(one, one) for one in re.split("; in one seed |, ", cells[-1])}
            assert said == {one.removesuffix("_stationary") for _, row in part.iterrows() for one in tied(row)}


def test_where_the_trials_came_from_is_said(table: pd.DataFrame) -> None:
    text = " ".join((ROOT / "docs/gpu.md").read_text(encoding="utf-8").split())
    counts = table["env.commit"].str.slice(0, 7).value_counts()
    assert f"{counts['1935395']} are of one call on two GPUs at commit 1935395" in text
    assert f"The other {counts['c1cca1c']} are of earlier calls, from commit c1cca1c with changes" in text
    assert set(table[table["env.commit"].str.startswith("c1cca1c")]["env.commit"].str.slice(-1)) == {"+"}


def test_the_firing_rates_in_the_document(table: pd.DataFrame) -> None:
    text = " ".join((ROOT / "docs/gpu.md").read_text(encoding="utf-8").split())
    part = table[table.chosen & (table.task == "two_timescale") & (table.architecture == "amor_gdn")]
    rates = part[["metric.gate.1.rate", "metric.gate.2.rate"]].to_numpy()
    assert f"so {100 * rates.min():.0f} to {100 * rates.max():.0f}% of the positions fire" in text
