"""Each database server with the tables."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.support.coordinator.event_table import ready_engine
from tests.support.servers.databases import SERVERS


@pytest.fixture(params=SERVERS)
def database_url(request: pytest.FixtureRequest) -> str:
    """Only servers in this room; ``engine`` is on one of them."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def mariadb_engine(mariadb_url: str) -> Iterator[Engine]:
    engine = ready_engine(mariadb_url)
    yield engine
    engine.dispose()
