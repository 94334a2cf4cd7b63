"""What a Python worker keeps: one engine and one DualWrite for each place, and nothing of its parent's."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from dualwrite.errors import ConfigurationError
from dualwrite.spark.workers import (
    close_workers,
    engine_of,
    first_connection,
    require_classic,
    require_known_settings,
    require_shared,
    worker_of,
)
from tests.spark.given import options

CLASSIC = "pyspark.sql.classic.dataframe"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    close_workers()
    yield
    close_workers()


def test_tasks_of_one_application_share_a_worker(sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url, dbtable="a", job="x", batchId=1, upsertKeys="id"))
    assert worker_of(options(url=sqlite_url, dbtable="b", job="y", batchId=2, batchsize=7)) is first
    assert worker_of(options(url=sqlite_url, application="another")) is not first
    assert worker_of(options(url=sqlite_url, **{"kafka.linger.ms": "5"})) is not first


def test_the_dual_write_has_what_the_options_say(sqlite_url: str) -> None:
    given = {"poolSize": "3", "application": "nightly", "producer": "librdkafka"}
    usage = worker_of(options(url=sqlite_url, **given)).dual_write.usage
    assert (usage.application, usage.pool_size) == ("nightly", 3)


def test_after_closing_it_is_made_anew(sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    close_workers()
    assert worker_of(options(url=sqlite_url)) is not first


def test_a_forked_process_makes_its_own(sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    child = os.fork()
    if child == 0:
        os._exit(0 if worker_of(options(url=sqlite_url)) is not first else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker_of(options(url=sqlite_url)) is first


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense:", "option 'url' is no database URL that SQLAlchemy knows; examples: sqlite:///"),
        ("oracle://me:secret@db/x", "database 'oracle' is not supported: use SQLite, PostgreSQL, MariaDB or MySQL"),
        ("postgresql+asyncpg://me:secret@db/x", "option 'url': asyncpg is a driver for asyncio; use a blocking one"),
        ("postgresql+pg8000://me:secret@db/x", "option 'url': the driver pg8000 is not installed"),
        ("postgresql+nothing://me:secret@db/x", "option 'url' is no database URL"),
    ],
)
def test_a_url_that_is_none_is_named_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(options(url=url))
    assert str(raised.value).startswith(said)
    assert "secret" not in str(raised.value)


def test_a_driver_of_an_extra_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(
        ConfigurationError, match=r"^option 'url': pymysql is not installed; install dualwrite\[mysql\]"
    ):
        engine_of(options(url="mysql+pymysql://me:secret@db/x"))


def refusal_of(url: str) -> str:
    """What the driver says of ``url``, which it cannot connect to, in one line."""
    engine = engine_of(options(url=url))
    with pytest.raises(ConfigurationError) as raised, first_connection(engine):
        pytest.fail("there is a connection")
    engine.dispose()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{nobody.getsockname()[1]}/x"
        said = refusal_of(f"postgresql+psycopg://me:secret@{place}")
    assert said.startswith(f"option 'url': no connection to postgresql+psycopg://me:***@{place}: connection failed: ")
    assert "secret" not in said


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/x.db"
    assert refusal_of(url) == f"option 'url': no connection to {url}: unable to open database file"


def test_what_goes_wrong_with_the_first_connection_later_is_raised_as_it_is(sqlite_url: str) -> None:
    engine = engine_of(options(url=sqlite_url))
    with pytest.raises(OperationalError, match="no such table"), first_connection(engine) as connection:
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()


@pytest.mark.parametrize("producer", [None, "native", "librdkafka"])
def test_a_setting_of_kafka_that_no_producer_knows_is_named_before_any_task(producer: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"linger\.mss"):
        require_known_settings(options(producer=producer, **{"kafka.linger.mss": "5"}))


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.kbytes"])  # the latter is librdkafka's alone
def test_a_setting_that_one_of_the_producers_knows_is_right_and_nobody_is_asked(name: str) -> None:
    require_known_settings(options(**{f"kafka.{name}": "5", "kafka.bootstrap.servers": "nobody.invalid:1"}))


@pytest.mark.parametrize(("module", "is_classic"), [("pyspark.sql.connect.dataframe", False), (CLASSIC, True)])
def test_a_dataframe_of_spark_connect_is_refused(module: str, is_classic: bool) -> None:
    df: Any = type("DataFrame", (), {"__module__": module})()
    if is_classic:
        require_classic(df)
        return
    with pytest.raises(ConfigurationError, match="Spark Connect's: use a session that is made with master"):
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
    with pytest.raises(ConfigurationError, match="SQLite is for a local master, not for"):
        require_shared(sqlite, master)


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
