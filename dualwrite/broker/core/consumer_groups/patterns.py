"""The regular expressions by which members subscribe to topics: RE2's syntax, as in Apache Kafka (which has RE2/J).

No expression can keep the broker busy: RE2 matches in linear time, and an expression with a huge program is refused.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 256 * 1024  # bytes: a program of at most 4,096 instructions


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The compiled ``pattern``, of which ``fullmatch`` is of use; None if it is no expression that RE2 accepts."""
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error:
        return None


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that match all of ``pattern``, which must be valid."""
    expression = compiled(pattern)
    assert expression is not None, f"a member is subscribed by the invalid pattern {pattern}"
    return frozenset(filter(expression.fullmatch, names))
