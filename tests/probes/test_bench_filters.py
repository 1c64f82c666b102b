"""The filters' benchmark on small sizes: every contender is timed, agrees, and is written down."""

from __future__ import annotations

import json

import numpy as np
import pytest

from filters import reference
from filters.hmm import book_instance
from probes.bench import filters as bench


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamax's dependencies
def test_every_contender_has_a_row(tmp_path, capsys):
    found = bench.run(
        tmp_path, lengths=[300], sequences=3, sequence_length=40, window_length=300, widths=[16, 32], repeats=2
    )
    assert len(found["rows"]) == 4 + 4 + 3 + 3 + 2
    assert all(row["milliseconds"] > 0 for row in found["rows"])
    ours = [row for row in found["rows"] if row["contender"] == "ours"]
    assert [row["ours_over_theirs"] for row in ours] == [1.0] * 5
    assert {row["holds"] for row in found["rows"]} <= {"yes", "no", ""}
    assert json.loads((tmp_path / "filters.json").read_text())["rows"] == found["rows"]
    assert "hmmlearn, scaling" in capsys.readouterr().out


def test_the_direct_form_is_the_window():
    hmm, tokens, _ = book_instance(length=300)
    expected = reference.window(hmm, tokens, 20).posterior
    np.testing.assert_allclose(bench.direct_window(hmm, tokens, 20), expected, atol=1e-12)


def test_a_disagreement_stops_the_measurement():
    with pytest.raises(RuntimeError, match="other and the filters in JAX differ by"):
        bench._agree("other", (1.0, np.zeros(2)), (1.0, np.full(2, 1e-6)))
