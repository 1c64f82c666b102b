"""The recall smoke suite shows what it must: attention recalls, a window and a tiny state do not."""

from __future__ import annotations

import pytest

from probes.catalogue import load_catalogue
from probes.cli import main
from probes.results import read_table


@pytest.mark.slow
def test_recall_smoke(tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "recall-smoke", "--out", str(tmp_path)])
    assert ended.value.code in (0, None)
    table = read_table(tmp_path / "recall-smoke").set_index(["task", "architecture"])
    assert (table.status == "ok").all()
    for task in ("mqar_small", "copy_small"):
        attention, sliding, tiny = (
            table.loc[(task, f"recall_{name}")] for name in ("attention", "sliding", "tiny_gdn")
        )
        assert attention.accuracy >= 0.95
        # the window reference of the sliding model's own receptive field bounds it
        assert sliding.receptive_field == 7
        margin, error = sliding["reference.receptive_field.margin"], sliding["reference.receptive_field.margin_se"]
        assert margin >= -2 * error
        assert tiny.accuracy < 0.6
        assert tiny.excess > 1


def test_the_suite_is_small():
    suite = load_catalogue().suite("recall-smoke")
    assert suite.smoke
    assert suite.train["steps"] * len(suite.tasks) * len(suite.architectures) * len(suite.learning_rates) <= 12_000
