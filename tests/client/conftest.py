"""A real broker, as a process of its own, for the tests of this folder."""

from collections.abc import Iterator

import pytest

from dualwrite import EmbeddedBroker
from tests.support.forked import ForkedBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module, which use topics and transactional ids of their own and never kill it."""
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running
