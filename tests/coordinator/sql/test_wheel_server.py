"""Where a machine has no PostgreSQL and no Docker, the tests have one from a wheel."""

import pytest

from dualwrite.cli.db import current, upgrade
from tests.conftest import running
from tests.support.servers.postgresql import PostgreSQL, binaries_of_the_wheel

pytestmark = pytest.mark.slow


def test_the_server_from_the_wheel_takes_the_tables_and_comes_back_after_a_kill() -> None:
    binaries = binaries_of_the_wheel()
    if not binaries:
        pytest.skip("the server's user cannot reach the wheel")
    with running(PostgreSQL(binaries[0])) as server:
        made = upgrade(server.url)
        server.kill()
        server.start()
        assert current(server.url) == made
