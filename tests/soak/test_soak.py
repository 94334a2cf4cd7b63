"""The soak finds what grows and what does not match, and a short one passes."""

import json
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from mmap import ACCESS_READ, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import Connection, Engine, create_engine, insert, text

from dualwrite.testing.kafka import KafkaBroker
from tests.soak.__main__ import main
from tests.soak.growth import Allowance, growth_of
from tests.soak.matching import Matching
from tests.soak.plots import draw
from tests.soak.samples import ALLOWANCES, MIB, deletes_segments, memory, open_files, size_of, threads
from tests.soak.stage import SoakStage
from tests.support.crash.application import LEFT, RIGHT, items
from tests.support.forked import ForkedKafkaBroker
from tests.support.waiting import eventually

SECONDS = [float(at) for at in range(0, 3600, 4)]
CHANCE = random.Random(3)
NOISE = [CHANCE.uniform(-5, 5) for _ in SECONDS]
SAWTOOTH = [at % 120 / 10 for at in SECONDS]
FILLING = [min(60.0, at / 10) for at in SECONDS]
"""A cache that is full after ten minutes."""


@pytest.mark.parametrize(
    ("added", "is_flat"),
    [
        ([0.0 for _ in SECONDS], True),
        (NOISE, True),
        (SAWTOOTH, True),
        (FILLING, True),
        ([at / 100 for at in SECONDS], False),
        ([at / 100 + noise for at, noise in zip(SECONDS, NOISE, strict=True)], False),
        ([at / 100 + peak for at, peak in zip(SECONDS, SAWTOOTH, strict=True)], False),
        ([-at / 100 for at in SECONDS], True),
        ([900.0 if at == 2000 else 0.0 for at in SECONDS], True),
    ],
    ids=["constant", "noise", "sawtooth", "filling", "growing", "in noise", "in sawtooth", "shrinking", "one peak"],
)
def test_growth_is_told_from_noise(added: list[float], is_flat: bool) -> None:
    found = growth_of("x", SECONDS, [100 + each for each in added], Allowance(8, 0.1))
    assert found.is_flat is is_flat, found


def test_growth_is_measured_in_the_unit_of_the_samples_per_hour() -> None:
    found = growth_of("x", SECONDS, [at / 3600 * 12 for at in SECONDS], Allowance(1, 0))
    assert found.per_hour == pytest.approx(12, rel=0.01)
    assert found.grown == pytest.approx(9, rel=0.01)


def test_few_samples_are_enough() -> None:
    assert growth_of("x", [0.0, 1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1, 1], Allowance(1, 0)).is_flat
    assert not growth_of("x", [0.0, 1.0, 2.0, 3.0, 4.0], [1, 2, 4, 6, 8], Allowance(1, 0)).is_flat


def test_a_log_is_full_once_every_partition_has_lost_its_first_segment(tmp_path: Path) -> None:
    for partition in ("left-0", "left-1", "right-0", "__transaction_state-0"):
        (tmp_path / partition).mkdir()
        (tmp_path / partition / "00000000000000000000.log").touch()
    for partition in ("left-0", "left-1", "right-0"):
        assert not deletes_segments(tmp_path, (LEFT, RIGHT))
        (tmp_path / partition / "00000000000000000000.log").rename(tmp_path / partition / "00000000000000018574.log")
    assert deletes_segments(tmp_path, (LEFT, RIGHT))


def test_this_process_is_measured(tmp_path: Path) -> None:
    before = open_files(os.getpid())
    with (tmp_path / "file").open("w") as file:
        file.write("x" * 1000)
        file.flush()
        assert open_files(os.getpid()) == before + 1
        assert size_of(tmp_path) == 1000
    assert threads(os.getpid()) >= 1


def test_memory_that_a_process_fills_is_measured_and_mapped_files_are_not(tmp_path: Path) -> None:
    before = memory(os.getpid())
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"x" * (32 * MIB))
        file.flush()
        with mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
            assert mapped.find(b"y") == -1
            assert memory(os.getpid()) < before + 16
    with mmap(-1, 32 * MIB, flags=MAP_PRIVATE | MAP_ANONYMOUS) as filled:  # not of the heap, which may have free pages
        for page in range(0, len(filled), PAGESIZE):
            filled[page] = 1
        assert memory(os.getpid()) > before + 16


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_memory_that_was_forked_is_measured_before_and_after_it_is_written_to() -> None:
    filled = bytearray(b"x") * (32 * MIB)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        for page in range(0, len(filled), 4096):
            filled[page] = 0
        os.write(ready[1], b"2")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        shared = memory(child)
        os.write(go[1], b"1")
        os.read(ready[0], 1)
        assert abs(memory(child) - shared) < 8
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (*ready, *go):
            os.close(end)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path / "broker") as made:
        for topic in (LEFT, RIGHT):
            made.create_topic(topic)
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'items.db'}")
    items.create(made)
    yield made
    made.dispose()


@pytest.fixture
def matching(broker: KafkaBroker, engine: Engine) -> Iterator[Matching]:
    made = Matching(broker.bootstrap_servers, engine)
    yield made
    made.close()


def store(engine: Engine, unit: str) -> None:
    with engine.begin() as connection:
        connection.execute(insert(items).values(unit=unit, item=0))


def send(broker: KafkaBroker, key: bytes, *topics: str) -> None:
    producer = Producer(broker.client_config)
    for topic in topics:
        producer.produce(topic, key=key)
    assert producer.flush(30) == 0


def test_what_matches_is_forgotten_and_what_does_not_is_named(
    matching: Matching, broker: KafkaBroker, engine: Engine
) -> None:
    store(engine, "whole")
    send(broker, b"whole:0", LEFT, RIGHT)
    matching.look()
    assert (matching.matched, matching.anomalies) == (1, [])
    store(engine, "late")
    send(broker, b"late:0", LEFT)
    matching.look()
    assert matching.anomalies == [], "a row may wait for its record"
    send(broker, b"whole:0", RIGHT)
    matching.look()
    assert matching.anomalies == [f"aborted read, or duplicate: ('whole', 0) in {RIGHT}"]
    matching.end()
    assert matching.anomalies[1:] == ["lost write: ('late', 0)"]


def test_a_picture_has_a_panel_for_each_thing_that_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    series = {name: [1.0, 2.0, 3.0] for name in ALLOWANCES}
    found = [growth_of(name, [0.0, 1.0, 2.0], values, Allowance(0, 0)) for name, values in series.items()]
    assert draw(tmp_path / "soak.svg", [0.0, 1.0, 2.0], series, found)
    text = (tmp_path / "soak.svg").read_text()
    assert all(f"{name}: grows" in text for name in ALLOWANCES)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.postgresql
@pytest.mark.usefixtures("postgresql_server")
def test_a_soak_of_some_seconds_matches_everything(tmp_path: Path) -> None:
    """It is too short for the slopes: only the anomalies count."""
    assert main(["--seconds", "8", "--workers", "3", "--directory", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "samples.json").read_text())
    assert result["anomalies"] == []
    assert result["matched"] > 0
    assert sum(result["faults"].values()) >= 2
    assert "| rows matched with records |" in (tmp_path / "soak.md").read_text()


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.postgresql
@pytest.mark.usefixtures("postgresql_server")
def test_dead_rows_are_removed_several_times_in_a_short_soak(tmp_path: Path) -> None:
    """PostgreSQL looks once a minute by itself; a table of a soak of two minutes would grow for half of it."""
    count = text("SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'changing'")
    stage = SoakStage(tmp_path, workers=0, seed=1)

    def looks(connection: Connection) -> int:
        connection.execute(text("UPDATE changing SET value = value + 1"))
        return int(connection.scalar(count) or 0)

    try:
        with stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("CREATE TABLE changing AS SELECT value FROM generate_series(1, 1000) AS value"))
            assert eventually(partial(looks, connection), lambda found: found >= 3, pause=0.1) >= 3
    finally:
        stage.close()
