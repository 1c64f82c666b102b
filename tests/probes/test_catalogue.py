"""The catalogue is strict, and every message gives the place, the key and what is near."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probes.catalogue import CatalogueError, load_catalogue, parse_sets

SUITE = """
suites:
  mine:
    tasks: [two_timescale]
    architectures: ['mixer:pkg:Mixer']
    learning_rates: [1e-3]
    smoke: true
"""


@pytest.fixture
def write(tmp_path: Path):
    def write_config(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write_config


def test_config_adds_and_replaces(write) -> None:
    shipped = load_catalogue()
    path = write(SUITE + "tasks:\n  two_timescale: {overlap: 0.9}\n  other: {kind: two_timescale}\n")
    catalogue = load_catalogue(path)
    assert set(catalogue.tasks) == {*shipped.tasks, "other"}
    assert catalogue.tasks["two_timescale"] == {"overlap": 0.9}
    assert catalogue.suite("mine").learning_rates == [1e-3]
    assert catalogue.architectures == shipped.architectures
    assert set(shipped.suites) <= set(catalogue.suites)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("taks:\n  a: {}\n", 1, "unknown key 'taks'; nearest is 'tasks'"),
        ("tasks:\n  a: {kind: two_timescales}\n", 2, "unknown kind 'two_timescales'; nearest is 'two_timescale'"),
        ("tasks:\n  a: 3\n", 2, "a is a mapping"),
        ("tasks: [a]\n", 1, "tasks is a mapping"),
        ("tasks:\n  a:b: {}\n", 2, "no name of an entry"),
        ("tasks:\n  two_timescale: {}\n  two_timescale: {}\n", 3, "'two_timescale' is given twice (first on line 2)"),
        ("tasks:\n  a: {\n", 3, "expected the node content"),
        (SUITE + "    sedes: [0]\n", 8, "unknown key 'sedes'; nearest is 'seeds'"),
        (SUITE + "    seeds: [x]\n", 8, "seeds.0 = 'x': input should be a valid integer"),
        (SUITE + "    train:\n      stpes: 3\n", 9, "unknown key 'stpes'; nearest is 'steps'"),
        (SUITE + "    train:\n      steps: 0\n", 9, "steps = 0: input should be greater than or equal to 1"),
        (SUITE + "    evaluate: {test_sequence: 4}\n", 8, "nearest is 'test_sequences'"),
        (SUITE + "    grid:\n      train.stpes: [3]\n", 9, "nearest is 'steps'"),
        (SUITE + "    grid:\n      tsk.overlap: [3]\n", 9, "unknown section 'tsk'; nearest is 'task'"),
        (SUITE + "    grid:\n      task.overlap: []\n", 9, "has no values"),
        (SUITE.replace("[two_timescale]", "[two_timescal]"), 4, "unknown task 'two_timescal'; nearest is"),
        (
            SUITE.replace("'mixer:pkg:Mixer'", "attentoin"),
            5,
            "'attentoin'; nearest is 'attention'",
        ),
        ("architectures:\n  a:\n    d_model: 8\n    layer: '[gdn]*2'\n", 4, "unknown 'layer'; nearest: 'layers'"),
        ("architectures:\n  a:\n    layers: '[gdn'\n", 3, "unexpected end in '[gdn'"),
        (
            "architectures:\n  a:\n    layers: l\n    mixers:\n      l: {kind: sliding,\n        windw: 3}\n",
            6,
            "'windw'",
        ),
        ("architectures:\n  a:\n    layers: gdn\n    d_model: -1\n", 4, "d_model: -1 is below 1"),
        (SUITE.replace("smoke: true", "smoke: false"), 6, "4 or more unless smoke: true"),
        (SUITE + "    train: {lr: 1e-3}\n", 8, "train.lr = 0.001 sets the learning rate, which learning_rates (0.001)"),
        (
            SUITE + "    grid:\n      train.lr: [1e-3, 1e-2]\n",
            9,
            "grid has train.lr, which learning_rates (0.001) search",
        ),
        (
            SUITE + "    seeds: [0, 1]\n    grid: {seeds.model_seed: [0, 1]}\n",
            9,
            "grid has seeds.model_seed, which seeds (0, 1) sets too; leave out one of the two",
        ),
        (
            SUITE.replace("mine:", "../esc:"),
            3,
            "'../esc' is no plain name of a folder, which a suite's results need; nearest is 'esc'",
        ),
        (SUITE.replace("mine:", "a/b:"), 3, "nearest is 'b'"),
        (SUITE.replace("mine:", '".."' + ":"), 3, "'..' is no plain name"),
        (SUITE.replace("mine:", ".mine:"), 3, "nearest is 'mine'"),
        (SUITE.replace("mine:", "trials:"), 3, "nearest is 'trials_'"),
        (SUITE.replace("[1e-3]", "[0]"), 6, "learning rate 0.0 is not positive"),
        (SUITE.replace("    learning_rates: [1e-3]\n", ""), 3, "key 'learning_rates' is missing"),
    ],
)
def test_mistakes_are_named_with_their_line(write, text: str, line: int, message: str) -> None:
    path = write(text)
    with pytest.raises(CatalogueError, match=re.escape(message)) as caught:
        load_catalogue(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"cannot read .*absent\.yaml: No such file"):
        load_catalogue(tmp_path / "absent.yaml")
    with pytest.raises(CatalogueError, match="cannot read"):
        load_catalogue(tmp_path)


def test_merge_keys_keep_their_own_line(write) -> None:
    path = write(SUITE.replace("mine:", "mine: &a") + "  b:\n    <<: *a\n    seed: 1\n")
    with pytest.raises(CatalogueError, match=r":10: b: unknown key 'seed'; nearest is 'seeds'"):
        load_catalogue(path)


def test_sets_are_nested_and_typed() -> None:
    assert parse_sets(
        ["task.overlap=1.0", "train.steps=200", "train.lr=1e-3", "arch.mixers.sliding.window=8", "arch.layers=[a, b]"]
    ) == {
        "task": {"overlap": 1.0},
        "train": {"steps": 200, "lr": 1e-3},
        "arch": {"mixers": {"sliding": {"window": 8}}, "layers": ["a", "b"]},
    }
    assert parse_sets([]) == {}
    assert parse_sets(["task.a=1", "task.a=2", "train.examples=null"]) == {
        "task": {"a": 2},
        "train": {"examples": None},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("task.overlap", "expected SECTION.KEY=VALUE"),
        ("overlap=1", "unknown section 'overlap'"),
        ("trian.steps=1", "unknown section 'trian'; nearest is 'train'"),
        ("train.stpes=1", "unknown key 'stpes'; nearest is 'steps'"),
        ("train.steps=x", "steps = 'x': input should be a valid integer"),
        ("train=1", "expected SECTION.KEY, as in train.steps"),
        ("task..a=1", "expected SECTION.KEY"),
        ("task.a=[", "is not a YAML value"),
        ("seeds.model=1", "unknown key 'model'; nearest is 'model_seed'"),
    ],
)
def test_wrong_sets_are_named(assignment: str, message: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(message)) as caught:
        parse_sets([assignment])
    assert assignment.split("=")[0] in str(caught.value)


def test_a_key_cannot_be_value_and_section() -> None:
    with pytest.raises(CatalogueError, match="'mixers' is set to a value as well"):
        parse_sets(["arch.mixers=1", "arch.mixers.sliding.window=8"])
