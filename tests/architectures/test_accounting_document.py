"""The numbers of docs/accounting.md are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from architectures.accounting import forward_flops
from architectures.published import published_spec

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "accounting.md"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_example_gives_its_numbers(text):
    block = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    names: dict = {}
    checked = 0
    for line in block.splitlines():
        code, _, comment = line.partition("#")
        number = re.match(r"\s*([\d.]+)", comment)
        if number:
            assert eval(code, names) == float(number[1])
            checked += 1
        else:
            exec(code, names)
    assert checked == 4


def test_the_table_gives_both_rules(text):
    rows = re.findall(r"^\| (\w[^|]*) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len(rows) == 8
    for name, exact, published in rows:
        spec = published_spec(name, "1.5B")
        assert f"{forward_flops(spec, 3072) / 1e9:.2f}" == exact
        assert f"{forward_flops(spec, 3072, rule='published') / 1e9:.2f}" == published
