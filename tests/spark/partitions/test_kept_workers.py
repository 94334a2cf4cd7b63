"""How long a Python worker's engine and DualWrite live: through threads and forks, until it ends."""

import gc
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from dualwrite import EmbeddedBroker
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from dualwrite.spark import workers
from dualwrite.spark.workers import close_workers, engine_of, require_kafka, worker_of
from tests.support.child import in_child
from tests.support.spark.batch_place import batch_place_on, broker
from tests.support.spark.batches import open_slots
from tests.support.spark.expected_rows import options
from tests.support.waiting import PATIENCE_SECONDS

__all__ = ["broker"]
pytestmark = pytest.mark.usefixtures("nothing_kept")


def test_a_new_worker_is_made_after_closing(sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    close_workers()
    assert worker_of(options(url=sqlite_url)) is not first


def test_a_forked_process_makes_its_own(sqlite_url: str) -> None:
    first = worker_of(options(url=sqlite_url))
    assert in_child(lambda: worker_of(options(url=sqlite_url)) is not first)
    assert worker_of(options(url=sqlite_url)) is first


def test_a_childs_child_keeps_what_it_has_from_both(sqlite_url: str) -> None:
    """To collect a connection of theirs may end it at the server."""
    first = weakref.ref(worker_of(options(url=sqlite_url)).engine)

    def act() -> bool:
        second = weakref.ref(worker_of(options(url=sqlite_url)).engine)
        return in_child(lambda: gc.collect() >= 0 and None not in (first(), second()))

    assert in_child(act)


class SlowEngines:
    """In place of ``engine_of``: each call waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.goes_on = threading.Event()
        monkeypatch.setattr(workers, "engine_of", self)

    def __call__(self, given: Any) -> Engine:
        self.begun.release()
        assert self.goes_on.wait(PATIENCE_SECONDS)
        return engine_of(given)


def test_threads_that_begin_together_share_a_worker(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines, found = SlowEngines(monkeypatch), []
    threads = [threading.Thread(target=lambda: found.append(worker_of(options(url=sqlite_url)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert engines.begun.acquire(timeout=PATIENCE_SECONDS)
    assert not engines.begun.acquire(timeout=0.2), "the second one waits for the first"
    engines.goes_on.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert found[0] is found[1]


def test_a_child_makes_a_worker_though_it_was_forked_while_one_was_being_made(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = SlowEngines(monkeypatch)
    thread = threading.Thread(target=worker_of, args=(options(url=sqlite_url),))
    thread.start()
    assert engines.begun.acquire(timeout=PATIENCE_SECONDS)
    monkeypatch.setattr(workers, "engine_of", engine_of)
    assert in_child(lambda: bool(worker_of(options(url=sqlite_url))))
    engines.goes_on.set()
    thread.join(PATIENCE_SECONDS)


@pytest.mark.postgresql
def test_a_child_leaves_the_connections_of_its_parent_alone(postgresql_url: str) -> None:
    given, question = options(url=postgresql_url), text("SELECT pg_backend_pid()")
    with worker_of(given).engine.connect() as connection:
        served_by = connection.scalar(question)
    assert in_child(lambda: gc.collect() >= 0)
    with worker_of(given).engine.connect() as connection:
        assert connection.scalar(question) == served_by


@pytest.mark.postgresql
def test_a_connection_that_the_server_has_ended_between_two_tasks_is_replaced(postgresql_url: str) -> None:
    given, administrator = options(url=postgresql_url), create_engine(postgresql_url)
    with worker_of(given).engine.connect() as connection:
        served_by = connection.scalar(text("SELECT pg_backend_pid()"))
    with administrator.connect() as connection:
        assert connection.scalar(text("SELECT pg_terminate_backend(:pid, 30000)"), {"pid": served_by})
    administrator.dispose()
    with worker_of(given).engine.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1


def test_a_worker_that_is_closed_has_no_connection_and_begins_no_unit(sqlite_url: str) -> None:
    worker = worker_of(options(url=sqlite_url))
    with worker.engine.connect() as connection:
        kept = connection.connection.driver_connection
    close_workers()
    with pytest.raises(Exception, match="Cannot operate on a closed database"):
        kept.execute("SELECT 1")
    with pytest.raises(InvalidTransactionStateError, match="closed"), worker.dual_write.transaction():
        pytest.fail("a unit of work began")


WRITES = """
import sys
from tests.support.spark.batches import options_for
from dualwrite.spark.workers import worker_of
url, servers, topic = sys.argv[1:]
with worker_of(options_for(url, servers, application=topic)).dual_write.transaction() as unit:
    unit.produce(topic, b"one")
"""


def test_a_worker_gives_its_slots_back_when_its_process_ends(sqlite: Engine, broker: EmbeddedBroker) -> None:
    for place in batch_place_on(sqlite, broker):
        command = [sys.executable, "-c", WRITES, str(sqlite.url), place.servers, place.topic]
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
        assert place.seen() == [b"one"]
        with sqlite.connect() as connection:
            slots = connection.scalars(text("SELECT COUNT(*) FROM kafka_transaction_state")).all()
        assert (slots, open_slots(sqlite)) == ([1], [])


def test_the_message_of_an_error_contains_no_row(sqlite_url: str) -> None:
    engine = engine_of(options(url=sqlite_url))
    with engine.connect() as connection, pytest.raises(OperationalError, match="no such table") as raised:
        connection.execute(text("INSERT INTO missing VALUES (:card)"), {"card": "4111 1111"})
    engine.dispose()
    assert "4111 1111" not in str(raised.value)


@pytest.mark.parametrize(("timeout_ms", "longest", "said"), [(300, 60.0, "0.3 s"), (120_000, 0.2, "0.2 s")])
def test_kafka_that_does_not_answer_is_waited_for_as_long_as_its_timeout_and_the_drivers_patience_allow(
    timeout_ms: int, longest: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_ANSWER", longest)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {"kafka.bootstrap.servers": address, "kafka.delivery.timeout.ms": str(timeout_ms)}
        with pytest.raises(KafkaUnavailableError, match=f"^batch 3: nothing was begun: .*gave up after {said}"):
            require_kafka(options(**given), "batch 3")
