"""The suite `lineup-smoke`: every miniature trains, and uses its context."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from probes.catalogue import load_catalogue
from probes.cli import main


@pytest.mark.slow
def test_every_miniature_beats_the_memoryless_window(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "lineup-smoke", "--out", str(tmp_path)])
    assert ended.value.code == 0
    rows = pd.read_parquet(tmp_path / "lineup-smoke" / "results.parquet")
    assert sorted(rows["architecture"]) == sorted(load_catalogue().suites["lineup-smoke"].architectures)
    assert rows["excess"].notna().all()
    # the margin is paired: how much worse window(1) is than the model, on the same sequences
    difference, error = rows["reference.window_1.excess"] - rows["excess"], rows["reference.window_1.margin_se"]
    assert (difference > 2 * error).all()
    assert ((rows["excess_kl"] - rows["excess_sampled"]).abs() < 4 * rows["agreement_se"]).all()
