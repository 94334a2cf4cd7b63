"""A plugin of pytest for the run of one mutant. Hypothesis tries the same examples for each, keeps none, and does not
make a failing one smaller. The fastest tests come first: most mutants need no other.

It is loaded before ``tests/conftest.py``, whose profile of Hypothesis inherits from this one.
"""

import json
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import STATS

settings.register_profile("mutation", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutation")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the seconds that mutmut has measured, once it has."""
    stats = Path(STATS)
    if stats.exists():
        seconds = json.loads(stats.read_text(encoding="utf-8"))["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
