"""A state table that another database has written: a copy beside the original, or the original at another place."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text, update

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli import db
from dualwrite.cli.main import main
from dualwrite.client.admin.inspector import Inspector, LogDirectory
from dualwrite.coordinator.branch import Branches
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka import known_cluster as clusters
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError, CopiedDatabaseError, ForeignClusterError, NoFreeSlotError
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Level
from dualwrite.operations.resolving import plan
from dualwrite.operations.terminating import foresee, terminate
from dualwrite.schema import upgrade_engine
from tests.support.coordinator.dying_application import die, dual_write, leave_decided, write
from tests.support.coordinator.event_table import await_sweeps, events, ready_engine, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, visible

pytestmark = pytest.mark.slow_cases("mariadb")

Pair = tuple[Engine, Engine]


def copy_of(engine: Engine, tmp_path: Path) -> Engine:
    """A copy of the whole database, as a staging system gets one."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        engine.dispose()
        shutil.copy(str(url.database), tmp_path / "copy.db")
        return create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    name = f"{url.database}_copy"
    if engine.dialect.name == "postgresql":
        engine.dispose()
        server = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {url.database}")
        server.dispose()
        return create_engine(url.set(database=name))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    copy = ready_engine(url.set(database=name).render_as_string(hide_password=False))
    with copy.begin() as connection:
        for each in ("kafka_transaction_state", "events"):
            connection.exec_driver_sql(f"INSERT INTO {each} SELECT * FROM {url.database}.{each}")
    return copy


def drop(copy: Engine) -> None:
    if copy.dialect.name != "sqlite":
        server = create_engine(copy.url.set(database=None if "mysql" in copy.url.drivername else "postgres"))
        with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            copy.dispose()
            connection.exec_driver_sql(f"DROP DATABASE {copy.url.database}")
        server.dispose()
    copy.dispose()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def has_identity(engine: Engine) -> bool:
    return slot_rows(engine)["orders-0"].database_id is not None


@pytest.fixture
def pair(engine: Engine, cluster: FakeCluster, tmp_path: Path) -> Iterator[Pair]:
    """Production, with a decided transaction open in Kafka, and its copy."""
    leave_decided(engine, cluster, "decided")
    copy = copy_of(engine, tmp_path)
    yield engine, copy
    drop(copy)


@pytest.mark.slow_cases("mariadb")
def test_a_copy_does_not_touch_the_originals_decisions(pair: Pair, cluster: FakeCluster) -> None:
    original, copy = pair
    requests = len(cluster.of("orders-0").requests)
    with dual_write(copy, cluster) as staging:
        for act in (staging.recover, lambda: write(staging, "staged")):
            with pytest.raises(
                CopiedDatabaseError, match=r"if the original is gone, run `dualwrite db moved --db URL --yes`"
            ):
                act()
    assert len(cluster.of("orders-0").requests) == requests, "Kafka was not asked"
    with dual_write(original, cluster) as production:
        assert production.recover()["orders-0"] is Outcome.COMMITTED
    assert cluster.committed == ["decided"]


@pytest.mark.slow_cases("mariadb")
def test_a_declared_copy_has_transactional_ids_of_its_own(pair: Pair, cluster: FakeCluster) -> None:
    original, copy = pair
    said = db.copied(copy.url.render_as_string(hide_password=False))
    with dual_write(copy, cluster) as staging:
        write(staging, "staged")
        assert staging.outcomes() == []
    (name,) = slot_rows(copy)
    assert name.startswith("orders-")
    assert name != "orders-0"
    assert name.removeprefix("orders").removesuffix("0") in said
    assert cluster.of("orders-0").ongoing is not None, "production's transaction is as it was"
    with dual_write(original, cluster) as production:
        production.recover()
    assert cluster.committed == ["decided", "staged"]
    with dual_write(copy, cluster) as again:
        write(again, "staged again")
    assert list(slot_rows(copy)) == [name]


@pytest.mark.slow_cases("mariadb")
def test_a_copy_of_a_declared_copy_is_refused(pair: Pair, cluster: FakeCluster, tmp_path: Path) -> None:
    """Its rows are gone from the original's names, and it would begin with those again."""
    _, copy = pair
    db.copied(copy.url.render_as_string(hide_password=False))
    with dual_write(copy, cluster) as staging:
        write(staging, "staged")
    (tmp_path / "second").mkdir()
    second = copy_of(copy, tmp_path / "second")
    if copy.dialect.name in ("mysql", "mariadb"):
        with second.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO dualwrite_database SELECT * FROM {copy.url.database}.dualwrite_database"
            )
    with dual_write(second, cluster) as again, pytest.raises(CopiedDatabaseError, match="was declared a copy itself"):
        write(again, "refused")
    assert cluster.of("orders-0").ongoing is not None, "production's transaction is as it was"
    db.moved(second.url.render_as_string(hide_password=False))
    with dual_write(second, cluster) as moved:
        write(moved, "moved")
    assert list(slot_rows(second)) == list(slot_rows(copy)), "the suffix is kept"
    drop(second)


@pytest.mark.slow_cases("mariadb")
def test_a_moved_database_goes_on_where_the_original_stopped(pair: Pair, cluster: FakeCluster) -> None:
    _, copy = pair
    assert db.moved(copy.url.render_as_string(hide_password=False)).startswith("1 state row is this database's")
    with dual_write(copy, cluster) as moved:
        assert moved.recover()["orders-0"] is Outcome.COMMITTED
        write(moved, "next")
        assert moved.outcomes() == []
    assert cluster.committed == ["decided", "next"]
    assert stored_values(copy) == ["decided", "next"]


def test_an_original_is_not_declared_a_copy_by_mistake(engine: Engine, cluster: FakeCluster) -> None:
    with dual_write(engine, cluster) as made:
        write(made, "one")
    url = engine.url.render_as_string(hide_password=False)
    with pytest.raises(ConfigurationError, match="'orders-0' itself, so it does not look like a copy"):
        db.copied(url)
    assert "orders-0" in slot_rows(engine)
    db.copied(url, forced=True)
    assert slot_rows(engine) == {}


def test_rows_of_the_release_before_have_no_identity_and_get_one(engine: Engine, cluster: FakeCluster) -> None:
    with dual_write(engine, cluster) as made:
        write(made, "one")
    with engine.begin() as connection:
        connection.execute(update(table).values(database_id=None, cluster_id=None, lease_version=None))
    with dual_write(engine, cluster) as made:
        write(made, "two")
    assert cluster.committed == ["one", "two"]


def test_a_renamed_sqlite_file_is_the_same_database(
    sqlite_engine: Engine, cluster: FakeCluster, tmp_path: Path
) -> None:
    leave_decided(sqlite_engine, cluster, "decided")
    sqlite_engine.dispose()
    Path(str(sqlite_engine.url.database)).rename(tmp_path / "renamed.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'renamed.db'}")
    with dual_write(engine, cluster) as made:
        assert made.recover()["orders-0"] is Outcome.COMMITTED
    engine.dispose()


def test_the_commands_for_copies_report_in_one_line_each(
    sqlite_engine: Engine, cluster: FakeCluster, tmp_path: Path, capsys: Any
) -> None:
    leave_decided(sqlite_engine, cluster, "decided")
    copy = copy_of(sqlite_engine, tmp_path)
    assert main(["db", "copied", "--db", str(copy.url)]) == 0
    said, left = capsys.readouterr().out.splitlines()
    assert said.startswith(
        "this is a copy: 1 state row of the original's deleted here; its transactional ids are NAME-"
    )
    assert left.startswith("orders-0: not given back when the copy was made")
    assert main(["db", "copied", "--db", str(copy.url)]) == 0
    again = capsys.readouterr().out
    assert again.strip().rpartition("NAME-")[2] == said.rpartition("NAME-")[2], "the suffix stays"
    assert main(["db", "moved", "--db", str(copy.url), "--yes"]) == 0
    assert capsys.readouterr().out == "nothing to do: there are no state rows\n"
    copy.dispose()


@pytest.mark.parametrize("is_beside", [True, False], ids=["the original beside it", "the original gone"])
def test_moved_does_nothing_unless_confirmed_and_names_an_original_that_is_in_sight(
    sqlite_engine: Engine, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_beside: bool
) -> None:
    leave_decided(sqlite_engine, cluster, "decided")
    copy = copy_of(sqlite_engine, tmp_path)
    original = Path(str(sqlite_engine.url.database))
    if is_beside:
        original = original.rename(tmp_path / "renamed.db")
    else:
        original.rename(tmp_path.parent / f"{tmp_path.name}-elsewhere.db")
    before = slot_rows(copy)
    assert main(["db", "moved", "--db", str(copy.url)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dualwrite: nothing was done: db moved needs --yes. ")
    assert "each aborts transactions in Kafka that the other has decided to commit" in said.err
    assert (f"The original is still there: {original}. " in said.err) == is_beside
    assert slot_rows(copy) == before
    assert main(["db", "moved", "--db", str(copy.url), "--yes"]) == 0
    assert slot_rows(copy) != before
    copy.dispose()


@pytest.mark.postgresql
def test_a_role_that_may_not_read_the_system_identifier_goes_on_without(
    postgresql_url: str, cluster: FakeCluster, tmp_path: Path
) -> None:
    engine = ready_engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        connection.exec_driver_sql("CREATE ROLE limited_identity LOGIN")
        connection.exec_driver_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited_identity")
        connection.exec_driver_sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO limited_identity")
    limited = create_engine(make_url(postgresql_url).set(username="limited_identity"))
    try:
        with dual_write(limited, cluster) as made:
            write(made, "one")
        assert not has_identity(engine)
        with ForkedBroker(tmp_path) as broker:
            findings = examine(limited, {"bootstrap.servers": broker.bootstrap_servers})
            (identity,) = [finding for finding in findings if finding.check == "identity"]
        assert identity.level is Level.WARNING
        assert "GRANT EXECUTE ON FUNCTION pg_control_system()" in identity.advice
        with pytest.raises(ConfigurationError, match=r"GRANT EXECUTE ON FUNCTION pg_control_system\(\)"):
            db.moved(limited.url.render_as_string(hide_password=False))
    finally:
        limited.dispose()
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY limited_identity")
            connection.exec_driver_sql("DROP ROLE limited_identity")
            connection.exec_driver_sql("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        engine.dispose()


@pytest.mark.postgresql
def test_a_copy_of_the_schema_in_the_same_database_is_refused(postgresql_url: str, cluster: FakeCluster) -> None:
    engine = ready_engine(postgresql_url)
    leave_decided(engine, cluster, "decided")
    upgrade_engine_in(engine, "staging")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO staging.kafka_transaction_state SELECT * FROM kafka_transaction_state")
    with dual_write(engine, cluster, schema="staging") as staging, pytest.raises(CopiedDatabaseError):
        staging.recover()
    assert cluster.of("orders-0").ongoing is not None
    engine.dispose()


def upgrade_engine_in(engine: Engine, schema: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    upgrade_engine(engine, schema=schema)


class CopySite:
    """A SQLite file and its broker's directory, side by side."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def broker(self) -> EmbeddedBroker:
        return ForkedBroker(self.home / "broker")

    def engine(self) -> Engine:
        return ready_engine(f"sqlite:///{self.home / 'app.db'}")


def on_broker(engine: Engine, broker: EmbeddedBroker, **options: Any) -> DualWrite:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    return DualWrite(engine, config, application="orders", pool_size=2, acquire_timeout=1, **options)


def die_decided(engine: Engine, broker: EmbeddedBroker) -> None:
    """A process that dies between the two commits."""
    dying = on_broker(engine, broker, on_step=die)
    with pytest.raises(SystemExit):
        write(dying, "decided")
    dying.close(timeout=0)
    await_sweeps()


@pytest.mark.parametrize("is_driver", [False, True], ids=["recover", "sweep_left"])
def test_a_sqlite_file_and_its_broker_that_are_moved_together_just_work(tmp_path: Path, is_driver: bool) -> None:
    old = CopySite(tmp_path / "old")
    old.home.mkdir()
    engine = old.engine()
    with old.broker() as broker:
        create_topic(broker.bootstrap_servers, "events", 1)
        die_decided(engine, broker)
    engine.dispose()
    new = CopySite(tmp_path / "new")
    shutil.copytree(old.home, new.home)
    shutil.rmtree(old.home)
    engine = new.engine()
    with new.broker() as broker, on_broker(engine, broker) as made:
        found = Branches(manager_of(made)).sweep_left()[0] if is_driver else made.recover()
        assert Outcome.COMMITTED in found.values()
        write(made, "next")
        assert made.outcomes() == []
        assert sorted(visible(broker.bootstrap_servers, "events")) == [b"decided", b"next"]
    engine.dispose()


def test_a_copied_sqlite_file_beside_the_originals_broker_is_refused(tmp_path: Path) -> None:
    site = CopySite(tmp_path)
    engine = site.engine()
    with site.broker() as broker:
        create_topic(broker.bootstrap_servers, "events", 1)
        die_decided(engine, broker)
        copy = copy_of(engine, tmp_path)
        with on_broker(copy, broker) as staging, pytest.raises(CopiedDatabaseError):
            staging.recover()
        with on_broker(engine, broker) as production:
            assert Outcome.COMMITTED in production.recover().values()
        copy.dispose()
    engine.dispose()


def test_an_operator_on_a_copy_cannot_end_the_originals_transactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = CopySite(tmp_path)
    engine = site.engine()
    with site.broker() as broker:
        create_topic(broker.bootstrap_servers, "events", 1)
        die_decided(engine, broker)
        copy = copy_of(engine, tmp_path)
        kafka = {"bootstrap.servers": broker.bootstrap_servers}
        for act in (foresee, terminate):
            with pytest.raises(CopiedDatabaseError):
                act(copy, kafka, "orders-0")
        (intention,) = plan(copy, kafka, transactional_ids=["orders-0"])
        assert "`dualwrite db moved" in intention.obstacle
        assert [each.obstacle for each in plan(engine, kafka, transactional_ids=["orders-0"])] == [""]
        where = ["--bootstrap-servers", broker.bootstrap_servers, "--db"]
        for url, recovery in ((copy.url, "none: a copy"), (engine.url, "commit")):
            assert main(["transactions", "list", *where, str(url)]) == (1 if url == copy.url else 0)
            listed = capsys.readouterr().out
            assert listed.splitlines()[1].endswith(recovery)
            assert ("nothing is recovered here: the state row of 'orders-0' was written" in listed) == (url == copy.url)
            assert main(["transactions", "describe", "orders-0", *where, str(url)]) == 0
            described = capsys.readouterr().out.splitlines()[-1]
            assert described.startswith(
                "recovery           none: the" if url == copy.url else "recovery           would commit"
            )
        said = {finding.check: finding.level for finding in examine(copy, kafka)}
        assert said["identity"] is Level.FAILURE
        assert {finding.check: finding.level for finding in examine(engine, kafka)}["identity"] is Level.OK
        with on_broker(engine, broker) as production:
            assert Outcome.COMMITTED in production.recover().values()
        copy.dispose()
    engine.dispose()


@pytest.mark.slow
def test_transactions_left_in_another_cluster_are_recovered_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = ForkedBroker(tmp_path / "first"), ForkedBroker(tmp_path / "second")
    engine = CopySite(tmp_path).engine()
    with first, second:
        for broker in (first, second):
            create_topic(broker.bootstrap_servers, "events", 1)
        die_decided(engine, first)
        with on_broker(engine, second) as elsewhere:
            assert Outcome.HEURISTIC_HAZARD not in elsewhere.recover().values()
            write(elsewhere, "elsewhere")
            assert elsewhere.outcomes() == []
        assert "slot orders-0 was left in the Kafka cluster" in caplog.text
        with on_broker(engine, first) as back:
            assert Outcome.COMMITTED in back.recover().values()
        assert [visible(broker.bootstrap_servers, "events") for broker in (first, second)] == [
            [b"decided"],
            [b"elsewhere"],
        ]
    engine.dispose()


@pytest.mark.slow
def test_an_operator_gives_up_a_cluster_that_is_gone(tmp_path: Path) -> None:
    engine = CopySite(tmp_path).engine()
    with ForkedBroker(tmp_path / "gone") as gone:
        create_topic(gone.bootstrap_servers, "events", 1)
        die_decided(engine, gone)
    with ForkedBroker(tmp_path / "next") as broker:
        create_topic(broker.bootstrap_servers, "events", 1)
        config = {"bootstrap.servers": broker.bootstrap_servers}
        one_slot = DualWrite(engine, config, application="orders", pool_size=1, acquire_timeout=0.3)
        with one_slot, pytest.raises(NoFreeSlotError):
            write(one_slot, "refused")
        db.moved(str(engine.url))
        with on_broker(engine, broker) as made:
            assert Outcome.HEURISTIC_HAZARD in made.recover().values()
            (outcome,) = made.outcomes()
            assert outcome.outcome is Outcome.HEURISTIC_HAZARD
            write(made, "next")
    with engine.connect() as connection:
        assert connection.scalar(select(text("count(*)")).select_from(events)) == 2
    engine.dispose()


def test_a_cluster_that_is_replaced_under_a_living_process_recovers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads to another cluster: what the row decides is open in the first one alone."""
    engine = CopySite(tmp_path).engine()
    with ForkedBroker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap_servers, "events", 1)
        with on_broker(engine, broker) as made:
            write(made, "one")
            with monkeypatch.context() as replaced:
                replaced.setattr(Inspector, "cluster_id", lambda _: "another")
                (slot,) = manager_of(made).process.pool.slots()
                slot.lend().close()  # as after an error: the slot is to be recovered
                with pytest.raises(ForeignClusterError, match="is another now, and was"):
                    write(made, "two")
                _, errors = manager_of(made).sweep()
                assert all(isinstance(error, ForeignClusterError) for error in errors)
            write(made, "two again")
            assert made.outcomes() == []
        assert visible(broker.bootstrap_servers, "events") == [b"one", b"two again"]
    engine.dispose()


def test_a_brokers_directory_on_another_machine_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def place(host: str) -> str | None:
        inspector = type("Asked", (), {"log_directories": lambda _: [LogDirectory(host, str(tmp_path))]})
        return clusters.log_directory_identity(inspector())

    assert place("127.0.0.1") == place("localhost") is not None
    assert place("192.0.2.7") is None
