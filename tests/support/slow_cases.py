"""Which cases of a test run in ``make test``, and which in ``make slow``: by the marker ``slow_cases``, and by the
database."""

from collections.abc import Iterable

import pytest

_MARIADB = ("mariadb", "mysql", "pymysql", "aiomysql", "asyncmy")
_OTHERS = ("sqlite", "aiosqlite", "postgresql", "psycopg", "psycopg2", "asyncpg")
"""Words in the ids of cases that use a database."""


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """Mark as slow those of ``items`` that their markers ``slow_cases`` name, and the cases on MariaDB of a function
    that has cases on another database.

    ``slow_cases("mariadb", "power-cut")`` names the cases in whose ids one of the words occurs, ``slow_cases()`` all
    cases of a function but the first one.
    """
    cases = [(item, *_function_and_case(item)) for item in items]
    of_others = {function for _, function, case in cases if _has_word(case, _OTHERS)}
    begun: set[str] = set()
    for item, function, case in cases:
        words = [marker.args for marker in item.iter_markers("slow_cases")]
        is_first = function not in begun
        is_named = any(word in case for named in words for word in named) or (() in words and not is_first)
        if is_named or (function in of_others and _has_word(case, _MARIADB)):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            begun.add(function)


def _function_and_case(item: pytest.Item) -> tuple[str, str]:
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return item.nodeid.removesuffix(f"[{case}]"), case


def _has_word(case: str, words: Iterable[str]) -> bool:
    return not {*words}.isdisjoint(case.split("-"))
