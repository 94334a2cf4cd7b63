"""``dualwrite move --finish --db``: units of work and the offsets that a database keeps go on at the target."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from sqlalchemy import insert, select, update

import dualwrite.moving.applications as applications
import dualwrite.moving.move as move
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as offsets
from dualwrite.coordinator.sql.tables import kafka_transaction_state as states
from dualwrite.errors import ForeignClusterError
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events, slot_rows
from tests.support.moving.move_site import MoveSite, add_records, create_topic, read
from tests.support.operations.places import OperationsSite
from tests.support.peer_clients.kafka_helpers import PATIENCE, quick
from tests.support.servers.databases import EVERY, url_of

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


class MovedApplication(OperationsSite):
    """An application whose topic is at the source, with a database of its own."""

    def __init__(self, url: str, brokers: tuple[KafkaBroker, KafkaBroker]) -> None:
        super().__init__(url, brokers[0])
        self.clusters = MoveSite(*brokers)
        self.target = brokers[1]

    def finish(self, *words: str) -> tuple[int, str]:
        """Finish the move; the exit code, and all that was said."""
        result = self.clusters.run("--finish", "--db", self.url, *words)
        return result.code, result.out + result.err

    def at_target(self) -> DualWrite:
        made = DualWrite(self.engine, self.target.client_config, application=self.application)
        self.made.append(made)
        return made

    def cluster_ids(self) -> set[str]:
        """The clusters that the slots' rows name."""
        with self.engine.connect() as connection:
            return {(name or "").partition(" ")[0] for name in connection.scalars(select(states.c.cluster_id))}

    def stored_offset(self, group: str) -> int:
        with self.engine.connect() as connection:
            return connection.scalars(select(offsets.c.next_offset).where(offsets.c.group_id == group)).one()


@pytest.fixture(params=EVERY)
def application(
    request: pytest.FixtureRequest, tmp_path: Path, brokers: tuple[KafkaBroker, KafkaBroker]
) -> Iterator[MovedApplication]:
    made = MovedApplication(url_of(request, tmp_path), brokers)
    yield made
    made.close()
    for broker in brokers:
        broker.reset()


@pytest.fixture
def sqlite_application(tmp_path: Path, brokers: tuple[KafkaBroker, KafkaBroker]) -> Iterator[MovedApplication]:
    made = MovedApplication(f"sqlite:///{tmp_path / 'app.db'}", brokers)
    yield made
    made.close()
    for broker in brokers:
        broker.reset()


def work(dw: DualWrite, topic: str, *values: str) -> None:
    for value in values:
        with dw.transaction() as tx:
            tx.execute(insert(events), {"value": value})
            tx.produce(topic, value=value)


def consume_stored(dw: DualWrite, bootstrap: str, topic: str, count: int) -> list[str]:
    """Use ``count`` records, each in a unit of work that stores the consumer's offset in the database."""
    consumer = Consumer(
        {
            **quick(bootstrap),
            "group.id": "stored",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    with closing(consumer):
        consumer.subscribe([topic], on_assign=dw.seek_to_stored)
        used: list[str] = []
        while len(used) < count:
            message = consumer.poll(0.2)
            if message is None:
                continue
            assert message.error() is None, message.error()
            with dw.transaction() as tx:
                tx.store_offsets(consumer)
                used.append(str(message.value(), "utf-8"))  # type: ignore[arg-type]
    return used


@pytest.mark.slow
def test_units_go_on_at_the_target_without_an_outcome_on_record(application: MovedApplication) -> None:
    topic, values = application.topic, [f"u{number}" for number in range(12)]
    with application.dual_write() as dw:
        work(dw, topic, *values[:8])
    code, said = application.finish("--verify")
    assert code == 0, said
    assert "1 slot given to the target" in said
    with application.at_target() as dw:
        assert not any(outcome.is_heuristic for outcome in dw.recover().values())
        work(dw, topic, *values[8:])
        assert list(dw.outcomes()) == []
    assert [str(record.value, "utf-8") for record in read(application.target, topic) if record.value] == values
    assert sorted(application.stored()) == sorted(values)


def test_the_row_names_nothing_of_the_source_afterwards(sqlite_application: MovedApplication) -> None:
    with sqlite_application.dual_write() as dw:
        work(dw, sqlite_application.topic, "a")
    (before,) = slot_rows(sqlite_application.engine).values()
    assert sqlite_application.finish()[0] == 0
    (after,) = slot_rows(sqlite_application.engine).values()
    assert (before.prepared_txn_state != "", after.prepared_txn_state, after.first_record) == (True, "", None)
    assert after.fencing_token > before.fencing_token
    code, said = sqlite_application.finish()
    assert code == 0
    assert "given to the target" not in said, "it was given before"
    assert f"{sqlite_application.url}: no slot and no offset was of the source, so nothing was changed there" in said
    assert slot_rows(sqlite_application.engine) == {after.transactional_id: after}


def test_a_transaction_that_a_moved_slot_finds_open_at_the_target_is_put_on_record(
    sqlite_application: MovedApplication,
) -> None:
    """Another database's, which may have decided to commit it."""
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
    assert site.finish()[0] == 0
    others = Producer({**quick(site.target.bootstrap_servers), "transactional.id": site.slot()})
    others.init_transactions(PATIENCE)
    add_records(others, site.topic, ["b"])
    with site.at_target() as dw:
        assert dw.recover() == {site.slot(): Outcome.HEURISTIC_HAZARD}
        assert [outcome.transactional_id for outcome in dw.outcomes()] == [site.slot()]


@pytest.mark.parametrize("step", [None, "COMMIT_KAFKA"])
def test_a_slot_whose_row_names_no_cluster_is_moved_too(sqlite_application: MovedApplication, step: str | None) -> None:
    """Its row is an earlier release's, or its database was declared as moved."""
    site = sqlite_application
    if step is None:
        with site.dual_write() as dw:
            work(dw, site.topic, "a")
    else:
        site.leave("a", step)
    site.change_row(cluster_id=None)
    code, said = site.finish()
    if step is None:
        assert (code, site.cluster_ids()) == (0, {site_id(site)})
        assert "1 slot given to the target" in said
    else:
        assert code == 2
        assert f"slot {site.slot()} was not given back" in said


@pytest.mark.slow
def test_stored_offsets_go_on_at_the_same_record(application: MovedApplication) -> None:
    topic, values = application.topic, [f"u{number}" for number in range(6)]
    with application.dual_write() as dw:
        work(dw, topic, *values)
        used = consume_stored(dw, application.broker.bootstrap_servers, topic, 4)
    before = application.stored_offset("stored")
    code, said = application.finish()
    assert code == 0, said
    assert application.stored_offset("stored") < before, "the source has more markers"
    with application.at_target() as dw:
        used += consume_stored(dw, application.target.bootstrap_servers, topic, 2)
    assert used == values


def test_stored_offsets_come_back(sqlite_application: MovedApplication) -> None:
    site, topic, values = sqlite_application, sqlite_application.topic, [f"u{number}" for number in range(8)]
    with site.dual_write() as dw:
        work(dw, topic, *values[:5])
        used = consume_stored(dw, site.broker.bootstrap_servers, topic, 2)
    with site.engine.begin() as connection:
        connection.execute(update(offsets).values(leader_epoch=7))
    assert site.finish()[0] == 0
    with site.engine.connect() as connection:
        assert connection.scalars(select(offsets.c.leader_epoch)).all() == [None], "the source's epochs count leaders"
    with site.at_target() as dw:
        work(dw, topic, *values[5:])
        used += consume_stored(dw, site.target.bootstrap_servers, topic, 1)
    back = site.clusters.back().run("--finish", "--db", site.url)
    assert (back.code, back.err) == (0, "")
    with site.dual_write() as dw:
        used += consume_stored(dw, site.broker.bootstrap_servers, topic, 5)
        assert list(dw.outcomes()) == []
    assert used == values


@pytest.mark.slow
def test_an_offset_of_the_target_is_not_translated_by_another_finish(sqlite_application: MovedApplication) -> None:
    """One that names no cluster: no unit of work has used a record of its partition yet."""
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a", "b")
        consume_stored(dw, site.broker.bootstrap_servers, site.topic, 2)
    assert site.finish()[0] == 0
    with site.engine.begin() as connection:
        connection.execute(update(offsets).values(cluster_id=None))
    before = site.rows()
    code, said = site.finish()
    assert code == 0, said
    assert site.rows() == before


def test_a_slot_in_use_is_refused(sqlite_application: MovedApplication) -> None:
    dw = sqlite_application.dual_write()
    work(dw, sqlite_application.topic, "a")
    code, said = sqlite_application.finish()
    assert code == 2
    assert f"slot {sqlite_application.slot()} is in use by" in said
    assert "stop every process of the application first" in said
    dw.close()
    assert sqlite_application.finish()[0] == 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", ["STORE_STATE", "COMMIT_KAFKA"])
def test_a_unit_in_doubt_is_refused_until_it_is_recovered(sqlite_application: MovedApplication, step: str) -> None:
    site = sqlite_application
    site.leave("a", step)
    code, said = site.finish()
    assert code == 2
    assert f"slot {site.slot()} was not given back" in said
    assert f"dualwrite recover --application {site.application}" in said
    assert site.target.read(site.topic) == [], "nothing was begun at the target"
    assert site.run("recover", "--application", site.application).code == 0
    code, said = site.finish("--topics", site.topic)
    assert code == 0, said
    assert [record.value for record in read(site.target, site.topic)] == ([b"a"] if step == "COMMIT_KAFKA" else [])


def test_the_command_for_an_odd_name_can_be_run_as_printed(sqlite_application: MovedApplication) -> None:
    site = sqlite_application
    site.application += " of today's"
    site.leave("a")
    _, said = site.finish()
    assert f"`dualwrite recover --application {shlex.quote(site.application)}` with the address" in said


def test_a_heuristic_outcome_that_recovery_would_find_is_refused(sqlite_application: MovedApplication) -> None:
    site = sqlite_application
    site.leave("a")
    site.run("transactions", "terminate", site.slot(), "--no-db", "--yes", db=False)
    site.change_row(owner="", lease_expires_at=None)
    code, said = site.finish()
    assert code == 2
    assert f"slot {site.slot()} would be found to be a heuristic abort by recovery" in said


def test_a_slot_without_an_owner_is_not_moved_with_an_open_transaction(sqlite_application: MovedApplication) -> None:
    """The move of its row would remove the decision to commit."""
    site = sqlite_application
    site.leave("a")
    site.change_row(owner="", lease_expires_at=None)
    before = site.rows()
    code, said = site.finish("--topics", create_topic(site.broker))
    assert code == 2
    assert f"slot {site.slot()} has an open transaction at the source" in said
    assert site.rows() == before
    assert site.run("recover", "--application", site.application).code == 0
    assert site.visible() == ["a"]


@pytest.mark.slow
def test_an_offset_of_a_topic_that_is_not_moved_is_refused(sqlite_application: MovedApplication) -> None:
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
        consume_stored(dw, site.broker.bootstrap_servers, site.topic, 1)
    other = create_topic(site.broker)
    before = site.rows()
    code, said = site.finish("--topics", other)
    assert code == 2
    assert f"an offset of group 'stored' in topic {site.topic!r}, which is not moved" in said
    assert site.rows() == before, "the database was changed in one transaction, or not"
    assert site.finish()[0] == 0


def test_an_application_that_began_at_the_target_too_early_is_named(sqlite_application: MovedApplication) -> None:
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
        consume_stored(dw, site.broker.bootstrap_servers, site.topic, 1)
    (row,) = slot_rows(site.engine).values()
    with site.engine.begin() as connection:
        early = {**row._mapping, "transactional_id": site.slot(7), "cluster_id": site_id(site)}
        connection.execute(insert(states).values(early))
        connection.execute(update(offsets).values(cluster_id=None))
    code, said = site.finish()
    assert code == 2
    assert f"{site.slot(7)} was used at the target before these were translated" in said


@pytest.mark.slow
def test_a_consumer_that_begins_at_the_target_too_early_is_refused_there(sqlite_application: MovedApplication) -> None:
    site, values = sqlite_application, [f"u{number}" for number in range(6)]
    with site.dual_write() as dw:
        work(dw, site.topic, *values)
        used = consume_stored(dw, site.broker.bootstrap_servers, site.topic, 2)
    assert site.clusters.run().code == 0
    with (
        site.at_target() as dw,
        pytest.raises(ForeignClusterError, match="run `dualwrite move` with --finish"),
    ):
        consume_stored(dw, site.target.bootstrap_servers, site.topic, 1)
    code, said = site.finish()
    assert code == 0, said
    with site.at_target() as dw:
        used += consume_stored(dw, site.target.bootstrap_servers, site.topic, 4)
    assert used == values


def site_id(site: MovedApplication) -> str:
    """The id of the target."""
    plan = site.clusters.run("--dry-run", "--json").json()
    return str(plan["target"])


def test_a_slot_that_is_used_during_the_move_is_not_given_away(
    sqlite_application: MovedApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
    rows = applications.state_rows(site.engine)
    with site.engine.begin() as connection:
        connection.execute(update(states).values(fencing_token=states.c.fencing_token + 1))
    monkeypatch.setattr(applications, "state_rows", lambda *_, **__: rows)
    code, said = site.finish()
    assert code == 2
    assert f"slot {site.slot()} was used meanwhile" in said


def test_a_slot_that_is_leased_during_the_move_is_not_given_away(
    sqlite_application: MovedApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that leases it goes on at the source, and would not learn that its slot is the target's."""
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
    begun: list[DualWrite] = []

    def require_settled(*arguments: Any) -> None:
        applications.require_settled(*arguments)
        begun.append(site.dual_write())
        work(begun[0], site.topic, "b")

    monkeypatch.setattr(move, "require_settled", require_settled)
    code, said = site.finish()
    assert code == 2
    assert f"slot {site.slot()} was used meanwhile" in said
    assert site_id(site) not in site.cluster_ids()
    monkeypatch.undo()
    begun[0].close()
    code, said = site.finish()
    assert code == 0, said


def test_each_of_several_databases_is_moved(sqlite_application: MovedApplication, tmp_path: Path) -> None:
    site = sqlite_application
    second = MovedApplication(f"sqlite:///{tmp_path / 'second.db'}", (site.broker, site.target))
    for each in (site, second):
        with each.dual_write() as dw:
            work(dw, each.topic, "a")
    code, said = site.finish("--db", second.url)
    assert code == 0, said
    assert "2 slots given to the target" in said
    assert site.cluster_ids() == second.cluster_ids() == {site_id(site)}
    second.close()


@pytest.mark.slow
def test_a_restored_copy_is_refused_until_it_is_declared(sqlite_application: MovedApplication, tmp_path: Path) -> None:
    site = sqlite_application
    with site.dual_write() as dw:
        work(dw, site.topic, "a")
    copy = tmp_path / "copy.db"
    shutil.copy(tmp_path / "app.db", copy)
    for database in (f"sqlite:///{copy}", site.url):
        result = site.clusters.run("--finish", "--db", database)
        if database != site.url:
            assert (result.code, len(result.err.splitlines())) == (2, 1)
            assert "dualwrite db copied" in result.err
            assert site.target.read(site.topic) == [], "nothing was begun at the target"
        else:
            assert result.code == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////nowhere/app.db", "/nowhere"),
        ("nonsense", "--db is not a database URL"),
        (
            "postgresql+psycopg://nobody@127.0.0.1:1/none",
            "no connection to postgresql+psycopg://nobody@127.0.0.1:1/none",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(site: MoveSite, url: str, message: str) -> None:
    create_topic(site.source)
    result = site.run("--finish", "--db", url)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert message in result.err
    assert not site.run("--dry-run", "--json").json()["finished"]


def test_a_database_without_the_tables_is_one_line(site: MoveSite, tmp_path: Path) -> None:
    create_topic(site.source)
    (tmp_path / "empty.db").touch()
    result = site.run("--finish", "--db", f"sqlite:///{tmp_path / 'empty.db'}")
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert "dualwrite db upgrade" in result.err
