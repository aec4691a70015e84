"""Durations of options."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from shardstore.errors import InvalidInput
from shardstore.model.durations import is_duration, seconds_of, timedelta_of


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("7d", 604800),
        ("12h", 43200),
        ("90min", 5400),
        ("2m", 120),
        ("0.5s", 0.5),
        (" 8 W ", 8 * 604800),
        ("0", 0),
        ("inf", math.inf),
        (0, 0),
        (0.0, 0),
        (math.inf, math.inf),
        (timedelta(minutes=1), 60),
    ],
)
def test_durations_are_timedeltas_or_texts(given: object, seconds: float) -> None:
    assert seconds_of("lease", given) == seconds
    assert not isinstance(given, str) or is_duration(given)


@pytest.mark.parametrize(
    "given", ["", "7", "d", "7y", "-7d", "1e3s", "nan", "٣h", 7, 30.0, -1, True, False, math.nan, timedelta(seconds=-1), None, ["7d"]]
)
def test_a_number_without_a_unit_is_no_duration(given: object) -> None:
    with pytest.raises(InvalidInput, match=r"lease .* is not a duration: give a timedelta, or a text, such as '12h'"):
        seconds_of("lease", given)
    assert not isinstance(given, str) or not is_duration(given)


def test_a_command_names_its_own_form() -> None:
    with pytest.raises(InvalidInput, match=r"^--lease '7' is not a duration: give a number with its unit, such as 30s, 12h or 7d$"):
        seconds_of("--lease", "7")


@pytest.mark.parametrize("given", [math.inf, "9999999999w"])
def test_a_time_has_an_end(given: object) -> None:
    with pytest.raises(InvalidInput, match=r"grace .* is longer than a time can be"):
        timedelta_of("grace", given)
