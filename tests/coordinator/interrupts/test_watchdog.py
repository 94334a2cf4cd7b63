"""Limits in time: what is cut, when, and what is not."""

import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.concurrency.waiting import Flag
from dualwrite.coordinator.process import watchdog
from dualwrite.coordinator.process.watchdog import Limit, current_limit, cut, isolated, within_limit
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.engine import connecting
from dualwrite.coordinator.sql.engine.connecting import BoundedCreator, WatchedPing, bound_connections
from dualwrite.errors import DatabaseUnavailableError
from tests.support.coordinator.sqlalchemy_pools import creator_of
from tests.support.striking import Striker
from tests.support.waiting import eventually

SHORT = 0.1
LONG = 60.0


class SocketDriver:
    """A driver's connection on a socket; ``peer`` is its server."""

    def __init__(self) -> None:
        self.socket, self.peer = socket.socketpair()
        self._sock = self.socket
        """As PyMySQL names it."""

    def close(self) -> None:
        self.socket.close()
        self.peer.close()


@pytest.fixture
def driver() -> Iterator[SocketDriver]:
    made = SocketDriver()
    yield made
    made.close()


def await_end(driver: SocketDriver) -> bytes:
    """What is read from a server that says nothing."""
    driver.socket.settimeout(30)
    return driver.socket.recv(1)


def is_cut(driver: SocketDriver) -> bool:
    driver.peer.setblocking(False)
    try:
        return driver.peer.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_connection_that_waits_too_long_is_cut_and_logged(
    driver: SocketDriver, caplog: pytest.LogCaptureFixture
) -> None:
    limit = Limit(SHORT, "orders-3")
    limit.watch(driver)
    with limit:
        assert await_end(driver) == b""
    assert limit.is_over
    assert eventually(lambda: bool(caplog.messages))
    assert caplog.messages == [
        "orders-3: the database had not answered after 0.1 s (database_timeout): its connection was cut"
    ]


def test_a_connection_whose_step_ends_in_time_is_not_cut(driver: SocketDriver) -> None:
    limit, other, slow = Limit(SHORT, "quick"), SocketDriver(), Limit(SHORT, "slow")
    limit.watch(driver)
    with limit:
        pass
    slow.watch(other)
    with slow:
        assert await_end(other) == b""  # the watchdog has looked, later than the first limit would have been over
    assert not is_cut(driver)
    assert not limit.is_over
    other.close()


def test_a_step_that_ends_as_the_watchdog_is_about_to_cut_keeps_its_connection(driver: SocketDriver) -> None:
    looks = iter([0.0, math.inf])  # the step ends between the two

    class EndingLimit(Limit):
        def remaining(self) -> float:
            return next(looks)

    limit = EndingLimit(math.inf, "x")  # no limit of the watchdog's: the test looks in its place
    limit.watch(driver)
    limit.cut_if_over()
    assert (is_cut(driver), limit.is_over) == (False, False)


def test_a_limit_that_was_left_behind_does_not_shorten_its_own_next_use() -> None:
    limit = Limit(LONG, "x")
    limit.__enter__()  # an interrupt came as the block ended
    limit.seconds = 2 * LONG
    with limit:
        assert limit.remaining() > LONG
    assert current_limit() is None


def test_after_an_isolated_block_the_limit_around_it_counts_again() -> None:
    limit = Limit(LONG, "x")
    with limit:
        with isolated():
            assert current_limit() is None
        assert current_limit() is limit


def test_a_limit_that_begins_anew_has_all_of_its_time(driver: SocketDriver) -> None:
    limit = Limit(LONG, "x")
    with limit:
        before = limit.remaining()
        with limit.resting():
            assert limit.remaining() == float("inf")
        assert limit.remaining() > before - 1


def test_inside_of_another_limit_the_earlier_one_counts(driver: SocketDriver) -> None:
    outer, inner = Limit(SHORT, "close", "timeout of close()"), Limit(LONG, "leases")
    inner.watch(driver)
    with outer, inner:
        assert inner.remaining() <= SHORT
        assert await_end(driver) == b""
    assert "after 0.1 s (timeout of close())" in inner.text
    with inner:
        assert inner.remaining() > SHORT
    assert "after 60 s (database_timeout)" in inner.text


def test_no_limit_is_under_way_outside_of_its_use() -> None:
    limit = Limit(LONG, "x")
    with limit:
        assert current_limit() is limit
        with Limit(LONG, "y") as inner:
            assert current_limit() is inner
        assert current_limit() is limit
    assert current_limit() is None
    with Limit(float("inf"), "none"):
        assert current_limit() is None


def test_a_limit_abandoned_by_an_interrupt_does_not_limit_later_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupt comes as its block ends, so that nothing ends it: the thread's later steps are inside of it."""
    now = float(math.ceil(time.monotonic()))  # whole seconds: sums and differences of others are rounded
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now)
    left = Limit(LONG, "left")
    with watchdog.isolated():
        left.__enter__()
        with Limit(2 * LONG, "inside") as inner:
            assert inner.remaining() == LONG, "it may be a limit that is under way"
        now += LONG + watchdog.LEFT_BEHIND + 1
        with inner:
            assert inner.remaining() == 2 * LONG
        with inner:
            assert inner.remaining() == 2 * LONG
    left.rest()


def test_a_limit_abandoned_by_an_interrupt_is_gone_with_the_exception() -> None:
    left = Limit(LONG, "left")
    with watchdog.isolated():
        left.__enter__()
        del left
        with Limit(2 * LONG, "next") as following:
            assert following.remaining() > LONG


def test_a_limit_whose_beginning_is_interrupted_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def strike() -> float:
        raise KeyboardInterrupt

    limit = Limit(LONG, "struck")
    with watchdog.isolated():
        with monkeypatch.context() as patched:
            patched.setattr(watchdog.time, "monotonic", strike)
            with pytest.raises(KeyboardInterrupt), limit:
                pytest.fail("the block ran")
        assert current_limit() is None
        with Limit(2 * LONG, "next") as following:
            assert following.remaining() > LONG


def test_a_limit_left_open_by_an_interrupt_is_ended_by_the_next_step(driver: SocketDriver) -> None:
    limit = Limit(SHORT, "x")
    limit.watch(driver)
    limit.begin()  # and the interrupt comes before the block that would end it
    limit.begin()
    limit.rest()
    other = SocketDriver()
    with Limit(SHORT, "y") as second:
        second.watch(other)
        assert await_end(other) == b""
    assert not is_cut(driver)
    other.close()


def test_the_error_of_a_step_that_was_cut_names_the_limit(driver: SocketDriver) -> None:
    class Step:
        limit = Limit(SHORT, "x")

        @within_limit
        def act(self) -> None:
            await_end(driver)
            raise OperationalError("COMMIT", None, Exception("server closed the connection"))

    Step.limit.watch(driver)
    with pytest.raises(OperationalError, match=r"\(the database had not answered after 0.1 s") as caught:
        Step().act()
    Step.limit.explain(caught.value)
    assert len(caught.value.detail) == 1


def test_the_time_of_a_step_ends_with_it_even_if_it_raises() -> None:
    class Step:
        limit = Limit(LONG, "x")

        @within_limit
        def act(self, error: Exception | None) -> None:
            assert self.limit.remaining() <= LONG
            if error is not None:
                raise error

    Step().act(None)
    assert Step.limit.remaining() == math.inf
    with pytest.raises(KeyError):
        Step().act(KeyError())
    assert Step.limit.remaining() == math.inf


def test_an_error_after_a_use_that_was_cut_does_not_name_the_limit(driver: SocketDriver) -> None:
    limit = Limit(SHORT, "orders-3")
    limit.watch(driver)
    with limit:
        await_end(driver)
    assert limit.is_over
    limit.seconds = LONG
    with pytest.raises(OperationalError) as raised, limit:
        raise OperationalError("SELECT", {}, Exception("of this use"))
    assert "its connection was cut" not in str(raised.value)


def test_an_error_within_the_limit_does_not_mention_it() -> None:
    with pytest.raises(OperationalError) as caught, Limit(LONG, "x"):
        raise OperationalError("COMMIT", None, Exception("server closed the connection"))
    assert caught.value.detail == []


def test_a_descriptor_reused_by_another_connection_is_not_cut(driver: SocketDriver) -> None:
    """The driver closes its connection while the watchdog looks at it, and the next file gets its number."""
    other = SocketDriver()
    numbers = iter([other.socket.fileno(), driver.socket.fileno()])

    class Closing:
        def fileno(self) -> int:
            return next(numbers)

    cut(Closing())
    assert not is_cut(other)
    assert not is_cut(driver)
    other.close()


def test_a_connection_that_is_closed_already_is_reported_to_the_log_alone(
    driver: SocketDriver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.close()
    with caplog.at_level("DEBUG", logger="dualwrite"):
        cut(driver)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "the connection that was to be cut is gone" in caplog.text


class Transport:
    def __init__(self, of: SocketDriver) -> None:
        self._of = of

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self._of.socket}[name]


def shapes(driver: SocketDriver) -> dict[str, Any]:
    """Where drivers have their sockets."""
    transport = Transport(driver)
    plain = {
        "psycopg": type("Psycopg", (), {"fileno": lambda self: driver.socket.fileno()})(),
        "pymysql": driver,
        "asyncpg": type("Asyncpg", (), {"_transport": transport})(),
        "aiomysql": type("Aiomysql", (), {"_writer": type("Writer", (), {"transport": transport})()})(),
    }
    return {**plain, "adapted": type("Adapted", (), {"driver_connection": plain["asyncpg"]})()}


@pytest.mark.parametrize("name", ["psycopg", "pymysql", "asyncpg", "aiomysql", "adapted"])
def test_the_socket_of_each_driver_is_found(driver: SocketDriver, name: str) -> None:
    cut(shapes(driver)[name])
    assert is_cut(driver)
    assert driver.socket.fileno() >= 0  # for its owner to close


def test_a_driver_whose_socket_is_not_known_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Strange:
        pass

    cut(Strange())
    cut(Strange())
    assert [message for message in caplog.messages if "Strange" in message] == [
        "the socket of a tests.coordinator.interrupts.test_watchdog."
        "test_a_driver_whose_socket_is_not_known_is_named_once.<locals>"
        ".Strange is not known, or is closed: database_timeout cannot cut it"
    ]


def test_sqlite_has_no_limit_and_keeps_its_pool_as_it_is(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    assert SqlDecisionStore(engine, database_timeout=SHORT).limit("x").seconds == float("inf")
    before = creator_of(engine)
    bound_connections(engine)
    assert creator_of(engine) is before


def test_a_child_that_is_forked_has_a_watchdog_of_its_own(driver: SocketDriver) -> None:
    Limit(SHORT, "before")  # the parent's thread runs, and is not in the child
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with Limit(SHORT, "x") as limit:
            limit.watch(driver)
            driver.socket.settimeout(10)
            os.write(write, b"cut" if driver.socket.recv(1) == b"" else b"?")
        os._exit(0)
    assert os.read(read, 3) == b"cut"
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


def test_limits_that_are_over_are_forgotten_with_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    dog = watchdog.Watchdog()  # the process's own may still forget limits of other tests
    monkeypatch.setattr(watchdog, "WATCHDOG", dog)
    limits = [Limit(LONG, str(number)) for number in range(10)]
    assert dog.watched == 10
    limits.clear()
    assert eventually(lambda: dog.watched == 0)  # its thread may look at one just now


# New connections.


def creator(create: Callable[[Any], Any]) -> BoundedCreator:
    return BoundedCreator(create, is_async=False)


def test_outside_of_a_limit_a_connection_is_made_in_its_own_thread() -> None:
    assert creator(lambda record: (record, threading.get_ident()))("r") == ("r", threading.get_ident())


def test_a_connection_that_is_made_in_time_is_watched_and_errors_are_the_drivers(driver: SocketDriver) -> None:
    with Limit(LONG, "x") as limit:
        assert creator(lambda record: driver)(None) is driver
        assert limit.connection is driver
        with pytest.raises(LookupError):
            creator(lambda record: {}["no such host"])(None)


def test_a_connection_that_comes_too_late_is_closed() -> None:
    gate, made = queue.SimpleQueue[SocketDriver](), SocketDriver()
    with Limit(SHORT, "x"), pytest.raises(DatabaseUnavailableError, match=r"within 0.1 s \(database_timeout\)"):
        creator(lambda record: gate.get())(None)
    gate.put(made)
    assert eventually(lambda: made.socket.fileno() < 0)
    made.close()


def test_an_attempt_to_connect_that_fails_too_late_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dualwrite")
    gate = queue.SimpleQueue[str]()
    with Limit(SHORT, "x"), pytest.raises(DatabaseUnavailableError):
        creator(lambda record: {}[gate.get()])(None)
    gate.put("no such host")
    assert eventually(lambda: any("given up has failed: 'no such host'" in message for message in caplog.messages))


def test_nothing_is_tried_once_the_limit_is_over() -> None:
    tried: list[Any] = []
    with Limit(SHORT, "x") as limit:
        assert eventually(lambda: not limit.remaining())
        with pytest.raises(DatabaseUnavailableError):
            creator(tried.append)(None)
    assert tried == []


def test_an_interrupt_while_a_connection_is_made_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, made = queue.SimpleQueue[SocketDriver](), SocketDriver()

    class Interrupted(Flag):
        def wait(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(connecting, "Flag", Interrupted)
    with Limit(LONG, "x"), pytest.raises(KeyboardInterrupt):
        creator(lambda record: gate.get())(None)
    gate.put(made)
    assert eventually(lambda: made.socket.fileno() < 0)
    made.close()


# Thread.start's own, cut short.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_place_of_an_attempt_to_connect_leaves_no_connection_open() -> None:
    places = 0
    while True:
        made: list[SocketDriver] = []
        striker = Striker(places + 1, KeyboardInterrupt())

        def connect(_: object, made: list[SocketDriver] = made) -> SocketDriver:
            made.append(SocketDriver())
            return made[-1]

        with Limit(LONG, "x"), suppress(KeyboardInterrupt), striker:
            creator(connect)(None)
        assert eventually(
            lambda: (
                not any(thread.name == "dualwrite-connecting" for thread in threading.enumerate() if thread.is_alive())
            )
        )
        are_open = [driver for driver in made if driver.socket.fileno() >= 0]
        for driver in are_open:
            driver.close()
        if not striker.where:
            break
        assert not are_open, striker.where
        places += 1
    assert len(are_open) == 1, "without an interrupt it is the caller's"
    assert places > 20


def test_a_ping_that_hangs_is_cut(driver: SocketDriver) -> None:
    ping = WatchedPing(lambda connection: await_end(connection) == b"")
    with Limit(SHORT, "x"):
        assert ping(driver)


def test_an_engines_pool_is_bounded_once_and_stays_so_when_it_is_disposed_of() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    bound_connections(engine)
    first, ping = creator_of(engine), engine.dialect.do_ping
    bound_connections(engine)
    engine.dispose()
    assert creator_of(engine) is first
    assert isinstance(first, BoundedCreator)
    assert engine.dialect.do_ping is ping
    with pytest.raises(OperationalError):  # the driver's own, in a limit and outside of one
        engine.connect()
    with Limit(LONG, "x"), pytest.raises(OperationalError):
        engine.connect()


class AnnouncedLock:
    """A lock that announces a thread that has to wait for it."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._lock.locked():
            self.is_waited_for.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_the_end_of_a_step_waits_until_the_watchdog_has_finished_cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the connection could be in another unit's hands by then."""
    cutting, go_on, has_rested = threading.Event(), threading.Event(), threading.Event()

    def slowly(_: object) -> None:
        cutting.set()
        assert go_on.wait(30)
        assert not has_rested.is_set()

    lock = AnnouncedLock()
    monkeypatch.setattr(watchdog, "cut", slowly)
    monkeypatch.setattr(watchdog.WATCHDOG, "cutting", lock)
    limit = Limit(SHORT, "x")
    limit.watch(object())
    limit.begin()
    assert cutting.wait(30)

    def rest() -> None:
        limit.rest()
        has_rested.set()

    thread = threading.Thread(target=rest)
    thread.start()
    assert lock.is_waited_for.wait(30)
    assert not has_rested.is_set()
    go_on.set()
    thread.join(30)
    assert has_rested.is_set()
