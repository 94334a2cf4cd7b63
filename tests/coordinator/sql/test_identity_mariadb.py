"""A MariaDB outside of Galera knows itself by the server or by the table's creation, whichever has stayed."""

import socket
from collections.abc import Callable, Iterator

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, create_engine, event, insert, select, text, update

from dualwrite import schema
from dualwrite.coordinator.sql.dialects.mysql.database import Mysql
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import CopiedDatabaseError
from tests.conftest import running
from tests.support.coordinator.dying_application import dual_write, leave_decided, write
from tests.support.coordinator.event_table import HEAD, ready_engine, slot_rows
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.servers.mariadb import MariaDB, find_program

pytestmark = [pytest.mark.mariadb, pytest.mark.slow]
SHOP = "shop"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def shop(own_mariadb: MariaDB) -> Iterator[Engine]:
    """The database of an application, on a server of its own."""
    engine = tables_on(own_mariadb)
    yield engine
    engine.dispose()


@pytest.fixture
def another() -> Iterator[MariaDB]:
    """Another server."""
    program = find_program("mariadbd")
    assert program is not None
    with running(MariaDB(program)) as server:
        yield server


def tables_on(server: MariaDB) -> Engine:
    alone = create_engine(server.url)
    with alone.begin() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {SHOP}")
    alone.dispose()
    return ready_engine(str(create_engine(server.url).url.set(database=SHOP)))


def restart(server: MariaDB, engine: Engine, *options: str) -> None:
    """On the same files; what the server says of itself is another then."""
    engine.dispose()
    server.kill()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server.start("--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}", *options)


def identities(engine: Engine) -> set[str]:
    return {row.database_id for row in slot_rows(engine).values()}


def change_definition(engine: Engine) -> None:
    """As a migration does. The moment is in whole seconds: wait for the next one of the server's."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT SLEEP(1.1)")
        connection.exec_driver_sql("ALTER TABLE kafka_transaction_state ADD COLUMN added INT")


def test_each_half_may_change_while_the_other_stays(own_mariadb: MariaDB, shop: Engine, cluster: FakeCluster) -> None:
    """Slots that nobody uses follow, too: else both halves would be others after the second change."""
    two_slots = {"pool_size": 2}
    with dual_write(shop, cluster, **two_slots) as made, made.transaction() as tx:
        tx.produce("events", "outer")
        leave_in_second = dual_write(shop, cluster, **two_slots)
        write(leave_in_second, "inner")
        leave_in_second.close()
    assert len(slot_rows(shop)) == 2
    leave_decided(shop, cluster, "decided")
    seen = [identities(shop)]
    for change in (lambda: restart(own_mariadb, shop), lambda: change_definition(shop)):
        change()
        with dual_write(shop, cluster) as made:
            write(made, f"next {len(seen)}")
        seen.append(identities(shop))
    assert cluster.committed == ["decided", "inner", "next 1", "next 2", "outer"]
    assert [len(of_rows) for of_rows in seen] == [1, 1, 1], "all rows follow at once"
    (first,), (second,), (third,) = seen
    halves = [database_id.split(":")[1:3] for database_id in (first, second, third)]
    assert halves[0][0] != halves[1][0] == halves[2][0]
    assert halves[0][1] == halves[1][1] != halves[2][1]


def upgrade_in_migration(engine: Engine) -> None:
    with engine.begin() as connection:
        schema.upgrade(Operations(MigrationContext.configure(connection)), HEAD)


@pytest.mark.parametrize("upgrade", [schema.upgrade_engine, upgrade_in_migration])
def test_an_upgrade_of_the_tables_comes_after_a_change_of_the_server(
    shop: Engine, cluster: FakeCluster, upgrade: Callable[[Engine], object]
) -> None:
    with dual_write(shop, cluster) as made:
        write(made, "one")
    (known,) = identities(shop)
    kind, _, *rest = known.split(":")
    with shop.begin() as connection:
        connection.execute(update(table).values(database_id=":".join((kind, "before", *rest))))
    upgrade(shop)
    assert identities(shop) == {known}


@pytest.mark.parametrize("is_replica", [False, True], ids=["restored dump", "replica"])
def test_another_server_is_another_database(
    own_mariadb: MariaDB, shop: Engine, cluster: FakeCluster, another: MariaDB, is_replica: bool
) -> None:
    leave_decided(shop, cluster, "decided")
    if is_replica:  # its table was created by the same statement, in the same second
        restart(own_mariadb, shop, "--server-id=2")
        copy = shop
    else:
        with shop.connect() as source:  # a moment is in whole seconds
            source.exec_driver_sql("SELECT SLEEP(1.1)")
        copy = tables_on(another)
        with shop.connect() as source, copy.begin() as target:
            rows = [dict(row._mapping) for row in source.execute(select(table))]
            target.execute(insert(table), rows)
    with dual_write(copy, cluster) as staging, pytest.raises(CopiedDatabaseError, match="was written by"):
        staging.recover()
    assert cluster.of("orders-0").ongoing is not None
    copy.dispose()


def test_the_identity_does_not_depend_on_the_sessions_time_zone(shop: Engine, cluster: FakeCluster) -> None:
    with dual_write(shop, cluster) as made:
        write(made, "one")
    known = identities(shop)
    elsewhere = create_engine(shop.url)
    event.listen(elsewhere, "connect", lambda driver, _: driver.query("SET time_zone = '+05:00'"))
    with elsewhere.connect() as connection:
        assert connection.scalar(text("SELECT @@time_zone")) == "+05:00"
        assert {Mysql().identity(connection, SHOP)} == known
    elsewhere.dispose()
