"""``dualwrite doctor``: it finds each thing that would go wrong, and nothing where nothing would."""

import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, make_url, text
from sqlalchemy.exc import OperationalError

from dualwrite import schema
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.inspector import Inspector
from dualwrite.coordinator.sql.own_tables import with_schema
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome
from dualwrite.errors import KafkaRefusedError, TwoPhaseCommitUnavailableError
from dualwrite.operations import database_checks
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Finding, Level, failure, ok, warning, worst
from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite, command

WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def findings(site: OperationsSite, engine: Any = None, **options: Any) -> list[Finding]:
    return list(examine(engine or site.engine, site.broker.client_config, **options))


def bad(found: list[Finding]) -> dict[str, str]:
    """What is not as it should be, by what was looked at."""
    return {finding.check: finding.message for finding in found if finding.level is not Level.OK}


def levels(found: list[Finding]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in found}


def test_where_nothing_is_wrong_every_line_is_ok(site: OperationsSite) -> None:
    site.write("one")
    result = site.run("doctor", "--application", site.application, "--pool-size", "8")
    assert (result.code, result.err) == (0, "")
    assert [line for line in result.out.splitlines() if not line.startswith("ok ")] == []
    checks = [line.split()[1] for line in result.out.splitlines()]
    assert checks == [
        *("database:", "durability:", "schema:", "permissions:", "transactions:", "clock:"),
        *("protocol:", "keep-prepared:", "brokers:", "transaction.two.phase.commit.enable:"),
        *("transaction.max.timeout.ms:", "two-phase", "identity:", "outcomes:", "slots:", "transactions:"),
    ]


def test_the_doctor_changes_nothing_but_its_own_transactional_id(any_place: OperationsSite) -> None:
    any_place.leave("one")
    before = any_place.rows(), any_place.described()
    findings(any_place, application=any_place.application)
    assert (any_place.rows(), any_place.described()) == before
    probe = any_place.described(f"{any_place.application}-doctor")
    assert probe is not None
    assert probe.state == "Empty"


def test_doctor_prints_json(site: OperationsSite) -> None:
    result = site.run("doctor", "--json").json()
    assert result["level"] == "ok"
    assert result["findings"][0] | {"message": ""} == {"check": "database", "level": "ok", "message": "", "advice": ""}


def test_without_an_application_no_transactional_id_is_made(site: OperationsSite) -> None:
    known = site.ask(lambda control: control.list_transactions())
    findings(site)
    assert site.ask(lambda control: control.list_transactions()) == known


# --- the database


@contextmanager
def on_connect(site: OperationsSite, *statements: str) -> Iterator[Any]:
    """An engine whose connections begin with ``statements``, as an application's may."""
    engine = create_engine(site.url)

    @event.listens_for(engine, "connect")
    def set_up(driver: Any, _: object) -> None:
        for statement in statements:
            driver.execute(statement)

    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("pragma", "found"),
    [
        ("PRAGMA synchronous = OFF", "synchronous = OFF: a crash of the machine can undo a decision"),
        ("PRAGMA synchronous = NORMAL", "synchronous = NORMAL: a crash of the machine can undo a decision"),
        ("PRAGMA journal_mode = OFF", "journal_mode = OFF: a crash during a commit leaves a part of it"),
        ("PRAGMA journal_mode = MEMORY", "journal_mode = MEMORY: a crash during a commit leaves a part of it"),
    ],
)
def test_a_sqlite_connection_that_is_not_durable(site: OperationsSite, pragma: str, found: str) -> None:
    with on_connect(site, pragma) as engine:
        result = findings(site, engine)
    assert bad(result)["durability"].startswith(found)
    assert worst(result) is Level.WARNING


@pytest.mark.parametrize("pragma", ["PRAGMA synchronous = FULL", "PRAGMA journal_mode = WAL"])
def test_a_sqlite_connection_that_is(site: OperationsSite, pragma: str) -> None:
    with on_connect(site, pragma) as engine:
        assert bad(findings(site, engine)) == {}


@pytest.mark.postgresql
def test_a_postgresql_without_fsync(postgresql_url: str, broker: KafkaBroker) -> None:
    site = OperationsSite(postgresql_url, broker)  # the tests' own server runs with fsync=off
    result = findings(site)
    assert (
        "fsync = off: a crash of the server's machine can undo a decision, or damage the whole database"
        in bad(result)["durability"]
    )
    assert levels(result)["database"] is Level.OK
    assert result[0].message.startswith("postgresql ")
    site.close()


@pytest.mark.mariadb
def test_a_mariadb_whose_commits_are_not_flushed(mariadb_url: str, broker: KafkaBroker) -> None:
    site = OperationsSite(mariadb_url, broker)
    with site.engine.connect() as connection:
        before = connection.scalar(text("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit"))
        connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))
        result = findings(site)
        connection.execute(text(f"SET GLOBAL innodb_flush_log_at_trx_commit = {before}"))
    assert "innodb_flush_log_at_trx_commit = 2: a COMMIT succeeds before" in bad(result)["durability"]
    site.close()


@pytest.mark.mariadb
def test_a_mariadb_table_without_transactions(mariadb_url: str, broker: KafkaBroker) -> None:
    site = OperationsSite(mariadb_url, broker)
    with site.engine.begin() as connection:
        connection.execute(text("ALTER TABLE kafka_transaction_state ENGINE = Aria"))
    result = findings(site)
    assert "is kept by the engine Aria, which has no transactions" in bad(result)["transactions"]
    assert worst(result) is Level.FAILURE
    site.close()


def test_a_database_without_the_tables(tmp_path: Path, broker: KafkaBroker) -> None:
    (tmp_path / "empty.db").touch()
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    result = command("doctor", "--db", url, "--bootstrap-servers", broker.bootstrap_servers)
    assert result.code == 1
    assert f"failure  schema: the state tables are missing -> dualwrite db upgrade --db {url}\n" in result.out
    assert "permissions" not in result.out
    assert "ok       keep-prepared" in result.out, "the other side is looked at all the same"


def with_version(site: OperationsSite, version: str) -> list[Finding]:
    with site.engine.begin() as connection:
        connection.execute(text("UPDATE dualwrite_alembic_version SET version_num = :version"), {"version": version})
    return findings(site)


def test_tables_of_an_earlier_release(site: OperationsSite) -> None:
    result = with_version(site, "0001")
    assert levels(result)["schema"] is Level.FAILURE
    assert "version 0001, and this release needs 000" in bad(result)["schema"]


def test_tables_of_a_later_release(site: OperationsSite) -> None:
    result = with_version(site, "9999")
    assert levels(result)["schema"] is Level.WARNING
    assert "version 9999 belongs to a newer release than this" in bad(result)["schema"]


@pytest.mark.postgresql
def test_an_engine_in_autocommit(postgresql_url: str, broker: KafkaBroker) -> None:
    site = OperationsSite(postgresql_url, broker)
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    result = findings(site, engine)
    assert "AUTOCOMMIT: a dual write needs its transactions" in bad(result)["transactions"]
    engine.dispose()
    site.close()


def test_each_right_that_is_missing_is_named(site: OperationsSite) -> None:
    engine = create_engine(site.url)
    event.listen(engine, "connect", lambda connection, _: connection.set_authorizer(may_read))
    result = findings(site, engine)
    engine.dispose()
    assert levels(result)["permissions"] is Level.FAILURE
    refused = [finding.message for finding in result if finding.check == "permissions"]
    assert "INSERT on kafka_transaction_state: not authorized" in refused
    assert "DELETE on kafka_transaction_record: not authorized" in refused
    assert not any(message.startswith("SELECT") for message in refused)


def may_read(action: int, *_: str | None) -> int:
    """For SQLite's authorizer: refuse what a login with SELECT alone may not do."""
    return sqlite3.SQLITE_DENY if action in WRITES else sqlite3.SQLITE_OK


def test_a_busy_database_is_not_reported_as_a_missing_permission(site: OperationsSite) -> None:
    impatient = create_engine(site.url, connect_args={"timeout": 0})
    with site.engine.connect() as writer:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        found = [finding for finding in findings(site, impatient) if finding.check == "permissions"]
        writer.rollback()
    impatient.dispose()
    assert [(finding.level, finding.advice) for finding in found] == [(Level.FAILURE, "")]
    assert "the database is locked" in found[0].message


def test_a_table_that_is_missing_needs_an_upgrade_and_no_grant(any_place: OperationsSite) -> None:
    with any_place.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE kafka_consumer_offset")
    (found,) = [finding for finding in findings(any_place) if finding.check == "permissions"]
    assert found.level is Level.FAILURE
    assert found.message.startswith("kafka_consumer_offset: ")
    assert found.advice.startswith("dualwrite db upgrade --db ")


READ_ONLY: dict[str, Any] = {
    "postgresql": {"options": "-c default_transaction_read_only=on"},
    "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    "mariadb": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
}
"""How a server treats a connection as a replica treats all."""


def test_a_database_that_takes_no_writes_is_one_finding(any_place: OperationsSite) -> None:
    """As a replica, or a file that is read-only. No right has to be granted."""
    url = any_place.engine.url
    options = READ_ONLY.get(url.get_backend_name(), {})
    if not options:
        url = make_url(f"sqlite:///file:{url.database}?mode=ro&uri=true")
    engine = create_engine(url, connect_args=options)
    found = [finding for finding in findings(any_place, engine) if finding.check == "permissions"]
    assert [finding.message.partition(":")[0] for finding in found] == ["the database takes no writes"]
    assert found[0].advice.startswith("name the primary: ")
    engine.dispose()


@pytest.mark.postgresql
def test_a_role_without_the_right_to_update(postgresql_url: str, broker: KafkaBroker) -> None:
    site = OperationsSite(postgresql_url, broker)
    with site.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS reader"))
        connection.execute(text("CREATE ROLE reader LOGIN"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
        connection.execute(text("GRANT INSERT ON kafka_transaction_state TO reader"))
    reader = create_engine(make_url(postgresql_url).set(username="reader"))
    result = findings(site, reader)
    reader.dispose()
    with site.engine.begin() as connection:
        connection.execute(text("DROP OWNED BY reader"))
        connection.execute(text("DROP ROLE reader"))
    site.close()
    refused = {finding.message: finding.advice for finding in result if finding.check == "permissions"}
    denied = "UPDATE on kafka_transaction_state: permission denied for table kafka_transaction_state"
    assert refused[denied] == ("GRANT UPDATE on kafka_transaction_state to the user that the application logs in as")
    assert not any(message.startswith("INSERT on kafka_transaction_state") for message in refused)


@pytest.mark.postgresql
def test_a_role_with_an_applications_rights_may_not_see_the_version(postgresql_url: str, broker: KafkaBroker) -> None:
    """The other checks go on: no unit of work needs that table."""
    site = OperationsSite(postgresql_url, broker)
    with site.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS app"))
        connection.execute(text("CREATE ROLE app LOGIN"))
        connection.execute(text("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app"))
        connection.execute(text("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO app"))
        connection.execute(text("REVOKE ALL ON dualwrite_alembic_version FROM app"))
    app = create_engine(make_url(postgresql_url).set(username="app"))
    found = {finding.check: finding for finding in findings(site, app)}
    app.dispose()
    with site.engine.begin() as connection:
        connection.execute(text("DROP OWNED BY app"))
        connection.execute(text("DROP ROLE app"))
    site.close()
    assert (found["schema"].level, found["permissions"].level) == (Level.WARNING, Level.OK)
    assert found["schema"].advice.startswith("GRANT SELECT on dualwrite_alembic_version to ")
    assert found["outcomes"].level is Level.OK


def test_a_lost_connection_is_no_missing_right(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = OperationalError("SELECT", None, Exception("server closed the connection"), connection_invalidated=True)
    refuse(monkeypatch, schema, "current", lost)
    (found,) = [each for each in findings(site) if each.check == "schema"]
    assert found == failure("schema", "server closed the connection")


@pytest.mark.postgresql
def test_a_role_without_the_right_to_the_sequence(postgresql_url: str, broker: KafkaBroker) -> None:
    """Rights on the tables suffice until an outcome has to be put on record."""
    site = OperationsSite(postgresql_url, broker)
    with site.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS app"))
        connection.execute(text("CREATE ROLE app LOGIN"))
        connection.execute(text("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app"))
    app = create_engine(make_url(postgresql_url).set(username="app"))
    (found,) = [finding for finding in findings(site, app) if finding.check == "permissions"]
    grant = found.advice.partition(" to the user")[0]
    with site.engine.begin() as connection:
        connection.execute(text(f"{grant} TO app"))
    (then,) = [finding for finding in findings(site, app) if finding.check == "permissions"]
    app.dispose()
    with site.engine.begin() as connection:
        connection.execute(text("DROP OWNED BY app"))
        connection.execute(text("DROP ROLE app"))
    site.close()
    assert (found.level, then.level) == (Level.FAILURE, Level.OK)
    assert grant == "GRANT USAGE on sequence kafka_transaction_outcome_id_seq"


@pytest.mark.mariadb
def test_a_login_called_readonly_lacks_rights_and_the_database_takes_writes(
    mariadb_url: str, broker: KafkaBroker
) -> None:
    """The server names the login in its refusal."""
    site = OperationsSite(mariadb_url, broker)
    login, host = "readonly", "'%'"
    with site.engine.begin() as connection:
        connection.execute(text(f"CREATE USER {login}@{host} IDENTIFIED BY 'known'"))
        connection.execute(text(f"GRANT SELECT ON * TO {login}@{host}"))
    reader = create_engine(make_url(mariadb_url).set(username=login, password="known"))
    result = findings(site, reader)
    reader.dispose()
    with site.engine.begin() as connection:
        connection.execute(text(f"DROP USER {login}@{host}"))
    site.close()
    advice = {finding.advice for finding in result if finding.check == "permissions"}
    assert "GRANT INSERT on kafka_transaction_state to the user that the application logs in as" in advice
    assert not any(each.startswith("name the primary") for each in advice)


@pytest.mark.postgresql
def test_a_database_that_does_not_answer(postgresql_url: str, broker: KafkaBroker) -> None:
    url = make_url(postgresql_url).set(database="no_such_database").render_as_string(hide_password=False)
    result = command("doctor", "--db", url, "--bootstrap-servers", broker.bootstrap_servers)
    assert (result.code, result.err) == (1, "")
    assert result.out.startswith("failure  database: ")
    assert "no_such_database" in result.out.splitlines()[0]


@pytest.mark.parametrize(("seconds", "words"), [(-60, "60 s behind"), (3600, "3600 s ahead of")])
def test_a_clock_that_is_wrong(
    any_place: OperationsSite, monkeypatch: pytest.MonkeyPatch, seconds: int, words: str
) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(timezone.utc) + timedelta(seconds=seconds)

    monkeypatch.setattr(database_checks, "datetime", Wrong)
    result = findings(any_place)
    assert f"this machine's is {words} the database's" in bad(result)["clock"]
    assert worst(result) is Level.WARNING


# --- findings that wait for an operator


def test_unacknowledged_heuristic_outcomes_are_reported(site: OperationsSite) -> None:
    with site.engine.begin() as connection:
        connection.execute(
            insert(kafka_transaction_outcome).values(
                transactional_id="a-0",
                prepared_txn_state="1:2",
                outcome="heuristic abort",
                detail="",
                found_at=text("CURRENT_TIMESTAMP"),
            )
        )
    result = bad(findings(site))["outcomes"]
    assert result.startswith("1 heuristic outcome not acknowledged: the two sides differ")


def test_transactions_that_were_left_open(site: OperationsSite) -> None:
    site.leave("one")
    result = findings(site, application=site.application)
    assert bad(result)["transactions"].startswith(f"{site.slot()} left open by dead processes")
    assert worst(result) is Level.WARNING


def test_a_renamed_application_is_named_with_the_partitions_that_it_holds_up(any_place: OperationsSite) -> None:
    site = any_place
    site.leave("one")
    for application in ("renamed", None):
        (finding,) = [
            reported for reported in findings(site, application=application) if reported.check == "other applications"
        ]
        assert finding.level is Level.WARNING
        assert finding.message.startswith(f"'{site.application}' has 1 slot whose owner is gone, for ")
        assert finding.message.endswith(f"held up: read_committed consumers of {site.topic}-0")
        printed = finding.advice.partition(", run dualwrite ")[2]
    assert "other applications" not in bad(findings(site, application=site.application)), "it recovers its own"
    assert command(*shlex.split(printed)).code == 0
    assert site.visible() == ["one"]
    assert "other applications" not in bad(findings(site, application="renamed")), "its slots were given back"


def test_a_renamed_application_is_named_though_this_client_may_not_describe_it(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application's own login has rights on its own transactional ids only."""
    site.leave("one")
    refuse(monkeypatch, ControlPlane, "describe_transaction", KafkaRefusedError("x", 53, "NOT_GRANTED"))
    (found,) = [each for each in findings(site, application="renamed") if each.check == "other applications"]
    assert (found.level, found.message.partition("; held up: ")[2]) == (Level.WARNING, "unknown: x: NOT_GRANTED (53)")
    assert f"dualwrite recover --application {site.application}" in found.advice


def test_a_renamed_application_is_named_though_kafka_does_not_answer(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualwrite.operations.doctor.ANSWER_SECONDS", 0.2)
    site.leave("one")
    result = list(examine(site.engine, {"bootstrap.servers": "127.0.0.1:1"}, application="renamed"))
    assert bad(result)["other applications"].endswith("held up: unknown, because a check of the cluster failed")


def test_the_command_for_a_renamed_application_names_the_mode_that_the_doctor_was_given(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    result = findings(site, application="renamed", two_phase="resume")
    (finding,) = [reported for reported in result if reported.check == "other applications"]
    assert f"--application {site.application} --two-phase resume --bootstrap-servers " in finding.advice


def test_the_command_for_a_renamed_application_on_a_secured_cluster_has_a_place_for_its_settings(
    site: OperationsSite,
) -> None:
    site.leave("one")
    secured = {**site.broker.client_config, "security.protocol": "PLAINTEXT"}
    result = examine(site.engine, secured, application="renamed")
    (finding,) = [reported for reported in result if reported.check == "other applications"]
    assert " --command-config FILE" in finding.advice


@pytest.mark.postgresql
def test_the_command_for_a_renamed_application_names_the_schema_that_was_chosen(
    postgresql_url: str, broker: KafkaBroker
) -> None:
    site = OperationsSite(postgresql_url, broker)
    site.leave("one")
    result = findings(site, with_schema(site.engine, "public"), application="renamed")
    site.close()
    (finding,) = [reported for reported in result if reported.check == "other applications"]
    assert f"dualwrite recover --application {site.application} --bootstrap-servers " in finding.advice
    assert finding.advice.endswith(" --schema public")


def test_transactions_of_the_application_without_a_row(site: OperationsSite) -> None:
    site.leave("one")
    with site.engine.begin() as connection:
        connection.execute(text("DELETE FROM kafka_transaction_state"))
    result = findings(site, application=site.application)
    assert f"{site.slot()} open, with names of slots of {site.application}" in bad(result)["transactions"]


def test_slots_beyond_the_pool_and_a_pool_that_is_full(site: OperationsSite) -> None:
    blocks = [site.dual_write() for _ in range(2)]
    for number, each in enumerate(blocks):
        with each.transaction() as tx:
            tx.produce(site.topic, value=str(number))
    result = [
        finding.message
        for finding in findings(site, application=site.application, pool_size=1)
        if finding.check == "slots"
    ]
    assert result[0] == "2 used so far, 2 leased now"
    assert result[1].startswith(f"{site.slot(1)} beyond pool_size 1")
    assert result[2].startswith("all 1 are leased")
    assert "slots" not in bad(findings(site, application=site.application, pool_size=3))


# --- the cluster


def test_a_cluster_that_does_not_answer(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.operations.doctor.ANSWER_SECONDS", 0.2)
    result = command("doctor", "--db", site.url, "--bootstrap-servers", "127.0.0.1:1")
    assert (result.code, result.err) == (1, "")
    assert "failure  kafka: " in result.out
    assert "127.0.0.1:1" in result.out
    assert "ok       permissions" in result.out, "the other side is looked at all the same"


def test_a_broker_that_has_two_phase_commit_turned_off(site: OperationsSite, tmp_path: Path) -> None:
    config = {"transaction.two.phase.commit.enable": "false"}
    with ForkedKafkaBroker(tmp_path / "broker", config=config) as refusing:
        result = list(examine(site.engine, refusing.client_config, application="a"))
    assert bad(result)["transaction.two.phase.commit.enable"] == "it is false on broker 0"
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in bad(result)["two-phase commit"]
    (finding,) = [finding for finding in result if finding.check == "two-phase commit"]
    assert finding.advice == "set transaction.two.phase.commit.enable=true on every broker"
    assert worst(result) is Level.FAILURE


def refuse(monkeypatch: pytest.MonkeyPatch, of: object, method: str, error: Exception) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(of, method, raising)


def test_settings_that_may_not_be_looked_at(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, Inspector, "broker_settings", KafkaRefusedError("x", 31, "CLUSTER_AUTHORIZATION_FAILED"))
    result = findings(site)
    assert "CLUSTER_AUTHORIZATION_FAILED" in bad(result)["broker settings"]
    assert worst(result) is Level.WARNING


def test_two_phase_commit_that_is_enabled_and_not_granted(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, ControlPlane, "init_producer_id", TwoPhaseCommitUnavailableError("refused"))
    result = findings(site, application=site.application)
    (finding,) = [finding for finding in result if finding.check == "two-phase commit"]
    assert finding.advice.startswith("transaction.two.phase.commit.enable is true, so grant TWO_PHASE_COMMIT")


def test_two_phase_commit_that_is_refused_to_a_client_that_may_not_see_the_settings(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application has no right to look at them: most likely another right is missing, too."""
    refuse(monkeypatch, Inspector, "broker_settings", KafkaRefusedError("x", 31, "CLUSTER_AUTHORIZATION_FAILED"))
    refuse(monkeypatch, ControlPlane, "init_producer_id", TwoPhaseCommitUnavailableError("refused"))
    result = findings(site, application=site.application)
    (finding,) = [finding for finding in result if finding.check == "two-phase commit"]
    assert finding.advice == (
        "set transaction.two.phase.commit.enable=true on every broker; or, if it is, grant TWO_PHASE_COMMIT and WRITE "
        f"on {site.application}-doctor and the slots beside it"
    )


def test_a_transactional_id_that_may_not_be_used(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, ControlPlane, "init_producer_id", KafkaRefusedError("InitProducerId", 53, "NOT_GRANTED"))
    result = findings(site, application=site.application)
    (finding,) = [finding for finding in result if finding.check == "two-phase commit"]
    assert (finding.level, finding.advice) == (
        Level.FAILURE,
        f"grant WRITE and TWO_PHASE_COMMIT on {site.application}-*",
    )


def old(monkeypatch: pytest.MonkeyPatch, *, version: int, keeps: bool, timeout: str) -> None:
    """A cluster as Apache Kafka may be."""
    settings = {7: {"transaction.max.timeout.ms": timeout}, 8: {"transaction.max.timeout.ms": "2147483647"}}
    monkeypatch.setattr(ControlPlane, "transaction_version", lambda self: version)
    monkeypatch.setattr(ControlPlane, "supports_keep_prepared", lambda self: keeps)
    monkeypatch.setattr(Inspector, "broker_settings", lambda self, names: settings)


def test_a_cluster_of_the_older_protocol(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    old(monkeypatch, version=1, keeps=True, timeout="900000")
    result = bad(findings(site))
    assert result["protocol"].startswith("transaction.version 1: librdkafka is used")
    assert result["transaction.max.timeout.ms"].startswith(
        "900000: librdkafka, which is used here, asks for 2147483547"
    )
    old(monkeypatch, version=1, keeps=True, timeout="2147483547")
    assert "transaction.max.timeout.ms" not in bad(findings(site))


def test_a_cluster_that_keeps_nothing(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    old(monkeypatch, version=2, keeps=False, timeout="900000")
    result = findings(site)
    assert bad(result)["keep-prepared"].startswith("the brokers do not offer InitProducerId v6")
    assert worst(result) is Level.FAILURE


# --- two_phase="resume"


def test_a_cluster_that_keeps_nothing_is_what_resume_is_for(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(monkeypatch, version=2, keeps=False, timeout="900000")
    result = findings(site, application=site.application, two_phase="resume")
    assert worst(result) is Level.OK
    assert levels(result)["transaction.max.timeout.ms"] is Level.OK
    assert "two-phase commit" not in levels(result), "it is not asked for"


def test_a_timeout_that_the_brokers_refuse_is_found(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    old(monkeypatch, version=2, keeps=False, timeout="899999")
    result = bad(findings(site, two_phase="resume"))["transaction.max.timeout.ms"]
    assert result == "899999, but the application requests transaction.timeout.ms 900000 (INVALID_TRANSACTION_TIMEOUT)"


def test_a_shorter_timeout_can_be_given_where_it_counts(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("doctor", "--two-phase", "resume", "-X")
    result = site.run(*words, "transaction.timeout.ms=60000")
    assert "times out after transaction.timeout.ms, 60000" in result.out
    assert "warning  keep-prepared: InitProducerId v6 (KIP-939) is offered" in result.out
    assert result.code == 0
    result = site.run(*words, "transaction.timeout.ms=soon")
    assert (result.code, result.out.count("transaction.timeout.ms")) == (2, 0)
    assert "-X: transaction.timeout.ms 'soon': allowed: whole numbers" in result.err
    result = site.run("doctor", "-X", "transaction.timeout.ms=60000")
    assert "-X: transaction.timeout.ms is set by dualwrite itself: remove it" in result.err


# --- arguments


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--db", "nonsense"], "--db is not a database URL of SQLAlchemy"),
        (["--pool-size", "0"], "--pool-size 0: use 1 or more"),
        (["--application", ""], "--application is empty: name the application, or leave it out"),
        (["--pool-size", "many"], "argument --pool-size: invalid int value: 'many'"),
        (["-X", "security.protocl=SSL"], "-X: security.protocl: there is no such setting"),
    ],
)
def test_an_error_is_one_line(site: OperationsSite, words: list[str], line: str) -> None:
    result = site.run("doctor", *words, db="--db" not in words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: {line}")
    assert result.err.count("\n") == 1


def test_the_result_is_the_worst_finding() -> None:
    assert worst([]) is Level.OK
    assert worst([ok("a", ""), warning("b", "")]) is Level.WARNING
    assert worst([failure("a", ""), ok("b", "")]) is Level.FAILURE


def test_a_database_is_called_by_its_own_name(any_place: OperationsSite) -> None:
    (found,) = [finding for finding in findings(any_place) if finding.check == "database"]
    name = found.message.partition(" ")[0]
    assert name == ("mariadb" if "MariaDB" in found.message else any_place.engine.dialect.name)
