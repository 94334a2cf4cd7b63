"""The marker ``slow_cases``: of a test with many cases a few run in ``make test``, and the others in ``make slow``."""

from collections.abc import Iterable

import pytest


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """Mark as slow those of ``items`` that their markers ``slow_cases`` name.

    ``slow_cases("mariadb", "power-cut")`` names the cases in whose ids one of the words occurs, ``slow_cases()`` all
    cases of a function but the first one.
    """
    begun: set[str] = set()
    for item in items:
        case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
        function = item.nodeid.removesuffix(f"[{case}]")
        words = [marker.args for marker in item.iter_markers("slow_cases")]
        is_first = function not in begun
        if any(word in case for named in words for word in named) or (() in words and not is_first):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            begun.add(function)
