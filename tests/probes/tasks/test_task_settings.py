from __future__ import annotations

import pytest
from pydantic import Field

from probes.task import TaskError
from probes.tasks.settings import TaskSettings, read_settings, refuse


class Dials(TaskSettings):
    length: int = Field(64, ge=2)
    noise: float = Field(0.1, ge=0, le=1)


def test_read_settings_fills_defaults_and_freezes():
    dials = read_settings(Dials, "copy", {"length": 8})
    assert dials.model_dump() == {"length": 8, "noise": 0.1}
    with pytest.raises(ValueError, match="frozen"):
        dials.length = 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lenght": 8}, "copy: unknown dial 'lenght'; nearest is 'length'"),
        ({"length": 1}, "copy: length = 1: input should be greater than or equal to 2"),
        ({"noise": float("nan")}, "copy: noise = nan: "),
        ({"length": "many"}, "copy: length = 'many': "),
    ],
)
def test_bad_dials_are_one_clear_line(settings, message):
    with pytest.raises(TaskError) as caught:
        read_settings(Dials, "copy", settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_refuse_names_dial_value_and_nearest_choice():
    with pytest.raises(TaskError, match=r"^mqar: pairs = 99: .*; nearest valid is 31$"):
        refuse("mqar", "pairs", 99, "more pairs than keys", 31)
