"""A DualWrite on Apache Kafka, which keeps no prepared transaction yet: one log line says so, with either producer."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite import DualWrite
from dualwrite.cli.db import upgrade
from dualwrite.cli.main import FAILED, main
from dualwrite.errors import TwoPhaseCommitUnavailableError
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.peer_clients.kafka_helpers import fresh_name

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

REFUSAL = r"^InitProducerId of {}-0: .*UNSUPPORTED_VERSION: the broker does not offer KIP-939's KeepPreparedTxn .*"


@pytest.fixture(scope="module")
def released_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A released Apache Kafka: without InitProducerId v6."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/rows.db"
    upgrade(url)
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def refused(kafka: ApacheKafka, engine: Engine, producer: str | None) -> str | None:
    """Begin a unit of work, which is refused in one line; the producer that was chosen for it."""
    name = fresh_name()
    with DualWrite(
        engine, {"bootstrap.servers": kafka.bootstrap_servers}, application=name, producer=producer
    ) as asked:
        with pytest.raises(TwoPhaseCommitUnavailableError, match=REFUSAL.format(name)) as caught:
            asked.transaction().__enter__()
        assert "\n" not in str(caught.value)
        return asked.producer


@pytest.mark.parametrize(
    ("wanted", "chosen", "reason"),
    [
        (None, "librdkafka", "the cluster does not offer KIP-939's InitProducerId"),
        ("librdkafka", "librdkafka", "asked for"),
        ("native", "native", "asked for"),
    ],
)
def test_released_kafka_is_refused_with_the_chosen_producer_and_the_reason_in_the_log(
    released_kafka: ApacheKafka,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    wanted: str | None,
    chosen: str,
    reason: str,
) -> None:
    with caplog.at_level(logging.INFO, "dualwrite"):
        assert refused(released_kafka, engine, wanted) == chosen
    (line,) = [line for line in caplog.messages if "the producer is" in line]
    assert line.endswith(f": the producer is {chosen}: {reason}")


@pytest.mark.parametrize(("wanted", "chosen"), [(None, "native"), ("librdkafka", "librdkafka")])
def test_kafka_with_unstable_versions_accepts_the_flag_and_refuses_keep_prepared(
    apache_kafka: ApacheKafka, engine: Engine, wanted: str | None, chosen: str
) -> None:
    assert refused(apache_kafka, engine, wanted) == chosen


@pytest.mark.parametrize("producer", [(), ("--producer", "native")], ids=["its own choice", "native"])
def test_the_command_on_released_kafka_fails_with_one_line(
    released_kafka: ApacheKafka,
    database_url: str,
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    producer: tuple[str, ...],
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("name\none\n")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (name VARCHAR(20))")
    where = ["--db", database_url, "--bootstrap", released_kafka.bootstrap_servers]
    assert main(["load", str(rows), *where, "--table", "things", "--topic", "things", *producer]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not offer KIP-939's KeepPreparedTxn" in line
