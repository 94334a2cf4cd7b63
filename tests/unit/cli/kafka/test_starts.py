"""A place in a topic on the command line."""

import argparse
from datetime import datetime, timedelta, timezone

import pytest

from dualwrite.admin.views import Start
from dualwrite.cli.kafka.starts import parse_start

MOMENT = datetime(2026, 11, 27, 17, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", "beginning"),
        ("end", "end"),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("2026-11-27T17:00:00Z", MOMENT),
        ("2026-11-27T17:00", MOMENT),
        ("2026-11-27 17:00:00+00:00", MOMENT),
        ("2026-11-27", MOMENT - timedelta(hours=17)),
        ("2026-11-27T18:00:00+01:00", MOMENT),
    ],
)
def test_a_place_is_a_word_an_offset_or_a_time(text: str, place: Start) -> None:
    assert parse_start(text) == place


@pytest.mark.parametrize("text", ["", "begin", "-1", "1.5", "9223372036854775808", "9" * 5000, "٣", "2026-13-01", "Z"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_start(text)
