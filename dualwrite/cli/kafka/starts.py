"""A place in a topic on the command line: ``beginning``, ``end``, an offset, or a time."""

import argparse
from collections.abc import Mapping
from datetime import datetime, timezone

from dualwrite.admin.views import Start

_LARGEST = 2**63 - 1
_WORDS: Mapping[str, Start] = {"beginning": "beginning", "end": "end"}
PLACES = "beginning, end, an offset, or a time such as 2026-11-27T17:00:00Z"


def parse_start(text: str) -> Start:
    """The place that ``text`` names; a time without a zone is UTC.

    :raises ArgumentTypeError: if it names none.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.isdecimal():
        if len(text) <= len(str(_LARGEST)) and int(text) <= _LARGEST:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text}: an offset has at most 63 bits")
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: use {PLACES}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
