"""Set-ups as they are in production: an application's own server, pool, monkey patches; in front of the real things."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from dualwrite.testing.kafka import KafkaBroker

# pytest brings them by itself, unless this checkout was installed before it had a plugin.
from dualwrite.testing.pytest_plugin import *  # noqa: F403
from tests.conftest import missing
from tests.support.forked import ForkedKafkaBroker
from tests.support.servers.pgbouncer import PgBouncer, find_pgbouncer


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests, which use topics and applications of their own."""
    with ForkedKafkaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def pgbouncer(postgresql_url: str) -> Iterator[Callable[..., PgBouncer]]:
    """``pgbouncer(mode, size)`` starts one in front of this test's own database."""
    program = find_pgbouncer()
    if program is None:
        missing("pgbouncer", "a test runs one in front of its own database")
    if "host" not in make_url(postgresql_url).query:
        pytest.skip("PgBouncer is started in front of a server on a Unix socket of this machine")
    with ExitStack() as made:

        def make(mode: str = "transaction", size: int = 5) -> PgBouncer:
            server = PgBouncer(program, postgresql_url, mode, size)
            made.callback(server.close)
            server.start()
            return server

        yield make


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"
