"""What a Python worker keeps: one engine and one DualWrite for each place, and nothing of its parent's."""

import gc
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from socket import socket
from typing import Any, cast

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError, DatabaseUnavailableError
from dualwrite.spark import workers
from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.spark.batch.write_batch import recover_job
from dualwrite.spark.plan.options import OPTIONS, options_of
from dualwrite.spark.workers import (
    dual_write_of,
    engine_of,
    first_connection,
    require_classic,
    require_shared,
    worker_of,
)
from tests.support.servers.databases import SERVERS
from tests.support.spark.expected_rows import REQUIRED, options, schema

CLASSIC = "pyspark.sql.classic.dataframe"
pytestmark = pytest.mark.usefixtures("nothing_kept")


OF_WRITES: dict[str, Any] = {
    "dbtable": "b",
    "topic": "other",
    "job": "y",
    "batchId": 2,
    "upsertKeys": "id",
    "columns.table": "id",
    "columns.value": "id",
    "batchsize": 7,
    "driverBytes": 0,
    "runTimeout": 90,
    "keepBatches": 2,
    "knownBatch": "skip",
}
OF_WORKERS: dict[str, Any] = {
    "application": "another",
    "kafka.linger.ms": "5",
    "poolSize": 3,
    "acquireTimeout": 7,
    "leaseTimeout": 77,
    "databaseTimeout": 8,
    "producer": "native",
    "twoPhase": "resume",
}


def test_each_option_is_one_of_a_write_or_one_of_a_worker() -> None:
    assert {*OF_WRITES, *OF_WORKERS, "url"} - {"kafka.linger.ms"} == {option.name for option in OPTIONS}


@pytest.mark.parametrize("name", OF_WRITES)
def test_writes_that_differ_in_an_option_of_their_own_share_a_worker(name: str, sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    assert worker_of(options(url=sqlite_url, **{name: OF_WRITES[name]})) is first


@pytest.mark.parametrize("name", OF_WORKERS)
def test_an_option_of_the_worker_makes_another_one(name: str, sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    assert worker_of(options(url=sqlite_url, **{name: OF_WORKERS[name]})) is not first


@pytest.mark.postgresql
@pytest.mark.parametrize("query", [{}, {"prepare_threshold": "0"}])
def test_the_driver_prepares_no_statement_which_a_pooler_could_give_to_another_client(
    postgresql_url: str, query: dict[str, str]
) -> None:
    engine = engine_of(options(url=url_text_with(postgresql_url, query)))
    with engine.connect() as connection:
        for number in range(10):
            assert connection.scalar(text("SELECT 1 + :number"), {"number": number}) == number + 1
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0
    engine.dispose()


def url_text_with(url: str, query: dict[str, str]) -> str:
    return make_url(url).update_query_dict(query).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("module", "whose"),
    [
        ("builtins", ""),
        ("pandas.core.frame", " of pandas"),
        ("pyspark.pandas.frame", " of pyspark.pandas: its to_spark() makes one of Spark"),
    ],
)
def test_anything_but_a_dataframe_of_spark_is_refused(module: str, whose: str) -> None:
    given: Any = type("DataFrame", (), {"__module__": module})()
    with pytest.raises(ConfigurationError) as refused:
        require_classic(given)
    assert str(refused.value) == f"expected a DataFrame of Spark, got a DataFrame{whose}"


def test_outside_a_task_pythons_collector_is_left_alone(sqlite_url: str) -> None:
    before = gc.get_freeze_count()
    worker_of(options(url=sqlite_url))
    assert gc.get_freeze_count() == before


def test_the_dual_write_has_the_settings_of_the_options(sqlite_url: str) -> None:
    given = {"poolSize": "3", "application": "nightly", "producer": "librdkafka"}
    usage = worker_of(options(url=sqlite_url, **given)).dual_write.usage
    assert (usage.application, usage.pool_size) == ("nightly", 3)


def test_each_option_of_a_worker_reaches_its_dual_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(workers, "DualWrite", lambda engine, config, **settings: made.append({**config, **settings}))
    dual_write_of(options(**OF_WORKERS), cast("Engine", None))
    assert made == [
        {
            "bootstrap.servers": "broker:9092",
            "linger.ms": "5",
            "application": "another",
            "pool_size": 3,
            "acquire_timeout": 7.0,
            "lease_timeout": 77.0,
            "database_timeout": 8.0,
            "producer": "native",
            "two_phase": "resume",
        }
    ]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense:", "option 'url' is not a database URL that SQLAlchemy knows; examples: sqlite:///"),
        ("oracle://me:secret@db/x", "database 'oracle' is not supported: use SQLite, PostgreSQL, MariaDB or MySQL"),
        ("postgresql+asyncpg://me:secret@db/x", "option 'url': asyncpg is a driver for asyncio; use a blocking one"),
        ("postgresql+pg8000://me:secret@db/x", "option 'url': the driver pg8000 is not installed"),
        ("postgresql+nothing://me:secret@db/x", "option 'url' is not a database URL"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(options(url=url))
    assert str(raised.value).startswith(said)
    assert "secret" not in str(raised.value)


def test_a_driver_of_an_extra_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(
        ConfigurationError, match=r"^option 'url': pymysql is not installed; run pip install '\.\[mysql\]'"
    ):
        engine_of(options(url="mysql+pymysql://me:secret@db/x"))


def refusal_of(url: str, kind: type[Exception] = ConfigurationError) -> str:
    """What the driver says of ``url``, which it cannot connect to, in one line."""
    engine = engine_of(options(url=url))
    with pytest.raises(kind) as raised, first_connection(engine):
        pytest.fail("there is a connection")
    engine.dispose()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def silent() -> Iterator[str]:
    """Where nobody listens."""
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{nobody.getsockname()[1]}"


@pytest.mark.parametrize(
    ("driver", "why"), [("postgresql+psycopg", "connection failed: "), ("mysql+pymysql", "(2003, ")]
)
def test_a_database_that_is_down_is_unavailable_and_named_without_its_password(
    driver: str, why: str, silent: str
) -> None:
    said = refusal_of(f"{driver}://me:secret@{silent}/x", DatabaseUnavailableError)
    assert said.startswith(f"no connection to {driver}://me:***@{silent}/x: {why}")
    assert "Connection refused" in said
    assert DatabaseUnavailableError.retriable


@pytest.mark.parametrize("name", ["password", "sslpassword"])
def test_a_password_at_the_end_of_the_url_is_not_shown_either(name: str, silent: str) -> None:
    said = refusal_of(f"postgresql+psycopg://{silent}/x?user=me&{name}=secret", DatabaseUnavailableError)
    assert said.startswith(f"no connection to postgresql+psycopg://{silent}/x?user=me: ")
    assert "secret" not in said


def test_a_missing_unix_socket_means_that_the_database_is_unavailable(tmp_path: Path) -> None:
    refusal_of(f"postgresql+psycopg:///x?host={tmp_path}", DatabaseUnavailableError)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("changed", [{"database": "nowhere"}, {"username": "nobody"}])
def test_a_servers_refusal_is_a_configuration_error(
    server: str, changed: dict[str, str], request: pytest.FixtureRequest
) -> None:
    url = make_url(request.getfixturevalue(f"{server}_url")).set(**changed)
    assert "no" in refusal_of(url.render_as_string(hide_password=False))


SERVER = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("url", "error", "is_away"),
    [
        ("postgresql://", SERVER + "FATAL:  the database system is starting up", True),
        ("postgresql://", SERVER + "FATAL:  the database system is in recovery mode", True),
        ("postgresql://", SERVER + "FATAL:  the database system is shutting down", True),
        ("postgresql://", SERVER + "FATAL:  the database system is not yet accepting connections", True),
        ("postgresql://", SERVER + "FATAL:  sorry, too many clients already", True),
        ("postgresql://", SERVER + "FATAL:  remaining connection slots are reserved for superusers", True),
        ("postgresql://", SERVER + "Connection refused", True),
        ("postgresql://", SERVER + "No route to host", True),
        ("postgresql://", SERVER + "server closed the connection unexpectedly", True),
        ("postgresql://", "connection was closed in the middle of operation", True),
        ("postgresql://", "unexpected connection_lost() call", True),
        ("postgresql://", "connection timeout expired", True),
        ("postgresql://", "failed to resolve host 'x': [Errno -3] Temporary failure in name resolution", True),
        ("postgresql://", "failed to resolve host 'x': [Errno -2] Name or service not known", False),
        ("postgresql://", SERVER + 'FATAL:  password authentication failed for user "me"', False),
        ("postgresql://", SERVER + "fe_sendauth: no password supplied", False),
        ("mysql://", (2003, "Can't connect to MySQL server on 'x' (timed out)"), True),
        ("mysql://", (2003, "Can't connect to MySQL server on 'x' ([Errno -2] Name or service not known)"), False),
        ("mysql://", (1040, "Too many connections"), True),
        ("mysql://", (1053, "Server shutdown in progress"), True),
        ("mysql://", (1203, "User me already has more than 'max_user_connections' active connections"), True),
        ("mysql://", (2002, "Can't connect to local server through socket"), True),
        ("mysql://", (2006, "MySQL server has gone away"), True),
        ("mysql://", (2013, "Lost connection to MySQL server during query"), True),
        ("mysql://", (1045, "Access denied for user 'me'@'x' (using password: YES)"), False),
        ("sqlite://", "unable to open database file", False),
    ],
)
def test_only_errors_of_an_unreachable_server_mean_that_it_is_away(
    url: str, error: str | tuple[int, str], is_away: bool
) -> None:
    given = (error,) if isinstance(error, str) else error
    raised = OperationalError("", None, Exception(*given))
    assert database_of(make_url(url).get_dialect()()).is_away(raised) is is_away


def test_the_driver_says_first_that_the_database_is_down(silent: str) -> None:
    given = {**REQUIRED, "url": f"postgresql+psycopg://me:secret@{silent}/x", "topic": "orders", "job": "nightly"}
    with pytest.raises(DatabaseUnavailableError, match="no connection to"):
        WholeBatch(options_of(given)).check(schema(id="integer"), "UTC")
    with pytest.raises(DatabaseUnavailableError, match="no connection to"):
        recover_job(**given)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/x.db"
    assert refusal_of(url) == (
        f"option 'url': no connection to {url}: unable to open database file: there is no directory {tmp_path}/nowhere"
    )


def test_a_later_error_on_the_first_connection_is_raised_unchanged(sqlite_url: str) -> None:
    engine = engine_of(options(url=sqlite_url))
    with pytest.raises(OperationalError, match="no such table"), first_connection(engine) as connection:
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()


@pytest.mark.parametrize("producer", [None, "native", "librdkafka"])
def test_a_setting_of_kafka_that_no_producer_knows_is_named_before_any_task(
    producer: str | None, sqlite_url: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"linger\.mss"):
        worker_of(options(url=sqlite_url, producer=producer, **{"kafka.linger.mss": "5"}))


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.kbytes"])  # the latter is librdkafka's alone
def test_a_setting_that_one_of_the_producers_knows_is_accepted_without_a_request(
    name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **_: asked.append(arguments))
    worker_of(options(url=sqlite_url, **{f"kafka.{name}": "5", "kafka.bootstrap.servers": "nobody.invalid:1"}))
    assert asked == []


@pytest.mark.parametrize(("module", "is_classic"), [("pyspark.sql.connect.dataframe", False), (CLASSIC, True)])
def test_a_dataframe_of_spark_connect_is_refused(module: str, is_classic: bool) -> None:
    df: Any = type("DataFrame", (), {"__module__": module, "isStreaming": False})()
    if is_classic:
        require_classic(df)
        return
    with pytest.raises(ConfigurationError, match="belongs to Spark Connect: make the session with master"):
        require_classic(df)


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,512]", False),
        ("spark://a:1", False),
    ],
)
def test_sqlite_is_for_one_machine(master: str, is_local: bool) -> None:
    require_shared(options(), master)
    sqlite = options(url="sqlite:///x.db")
    if is_local:
        require_shared(sqlite, master)
        return
    with pytest.raises(ConfigurationError, match="SQLite works only with a local Spark master, not with"):
        require_shared(sqlite, master)


@pytest.mark.parametrize("master", ["local[2]", "spark://a:1"])
def test_the_error_of_a_malformed_url_shows_no_part_of_it(master: str) -> None:
    malformed = options(url="postgresql+psycopg://u:p@ss:s3cret@h/db")
    with pytest.raises(ConfigurationError, match="option 'url' is not a database URL that SQLAlchemy knows") as caught:
        require_shared(malformed, master)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_sqlite_waits_for_another_tasks_partition_unless_the_url_says_otherwise(sqlite_url: str) -> None:
    for url, seconds in ((sqlite_url, 300_000), (f"{sqlite_url}?timeout=2", 2_000)):
        engine = engine_of(options(url=url))
        with engine.connect() as connection:
            assert connection.scalar(text("PRAGMA busy_timeout")) == seconds
        engine.dispose()


def settings(url: str, *questions: str) -> list[Any]:
    engine = engine_of(options(url=url))
    with engine.connect() as connection:
        answers = [connection.scalar(text(question)) for question in questions]
    engine.dispose()
    return answers


@pytest.mark.postgresql
def test_a_transaction_sees_what_others_have_committed_on_postgresql(postgresql_url: str) -> None:
    assert settings(postgresql_url, "SHOW transaction_isolation") == ["read committed"]


@pytest.mark.mariadb
def test_a_transaction_sees_what_others_have_committed_and_speaks_utc_on_mariadb(mariadb_url: str) -> None:
    level, zone, mode = settings(mariadb_url, "SELECT @@tx_isolation", "SELECT @@time_zone", "SELECT @@sql_mode")
    assert (level, zone) == ("READ-COMMITTED", "+00:00")
    assert {"NO_AUTO_VALUE_ON_ZERO", "STRICT_TRANS_TABLES"} <= set(mode.split(","))
