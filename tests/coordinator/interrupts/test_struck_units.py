"""An exception out of a signal handler at every place of a unit of work, of the pool and of the background: other
threads work on at once, no lease is lost, both sides agree, and the exception says whether the unit was committed."""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import base
from sqlalchemy.exc import StatementError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.unit import block
from dualwrite.errors import InDoubtError, InvalidTransactionStateError, UnitCommitted
from tests.support.coordinator.event_table import CONFIG, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import recovered, write, write_unit
from tests.support.striking import Striker
from tests.support.user_errors import Interrupt, LimitError, UserError

LONG = 20.0
SOME = 29
"""Of so many places one is struck by the fast tests."""

# Thread.start's own, cut short.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def in_thread(act: Callable[[], object], where: str) -> None:
    """Run ``act`` in another thread, and fail if it does not end or raises."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            ended.append(error)
            raise
        ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert ended, f"another thread hangs after a strike at {where}"
    assert ended[0] is None, f"another thread failed after a strike at {where}: {ended[0]!r}"


class StruckWorld:
    """One DualWrite on SQLite and a fake Kafka, with one slot."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kafka = FakeKafka()
        self.made: list[DualWrite] = []
        self.count = 0

    def make(self) -> DualWrite:
        options: Any = {"participant": self.kafka.participant, "pool_size": 1, "acquire_timeout": 5}
        self.made.append(DualWrite(self.engine, CONFIG, application="orders", lease_timeout=3000, **options))
        return self.made[-1]

    def warm(self) -> DualWrite:
        dual_write = self.make()
        self.write(dual_write)
        return dual_write

    def write(self, dual_write: DualWrite) -> str:
        self.count += 1
        write_unit(dual_write, f"other {self.count}")
        return f"other {self.count}"

    def strike(self, act: Callable[[str], None], at: int, kind: type[BaseException]) -> Striker:
        """Strike ``act`` and see that what it raised is the truth. The Striker holds the exception, as an ``except``
        that takes long would."""
        value = f"{act.__name__} {at} {kind.__name__}"
        raised: BaseException | None = None
        striker = Striker(at, kind("limit"))
        try:
            with striker:
                act(value)
        except (kind, UnitCommitted, InDoubtError) as error:
            raised = error
        self.check_truth(value, raised, striker)
        return striker

    def check_truth(self, value: str, raised: BaseException | None, striker: Striker) -> None:
        where = striker.where
        if not where:
            return
        assert raised is not None, f"the limit that struck at {where} was swallowed"
        is_stored = value in stored_values(self.engine)
        if isinstance(raised, InDoubtError):
            return
        assert isinstance(raised, UnitCommitted) is is_stored, (
            f"{raised!r}, and the row is stored: {is_stored}: {where}"
        )
        if isinstance(raised, UnitCommitted):
            assert isinstance(raised.__cause__, LimitError | Interrupt), where
            assert isinstance(raised, Exception) is isinstance(raised.__cause__, Exception), where

    def check_works(self, dual_write: DualWrite, where: str) -> None:
        """Another thread works, the lease is held and renewed, and both sides agree."""
        in_thread(lambda: self.write(dual_write), where)
        assert recovered(dual_write), where
        assert self.engine.pool.checkedout() == 0, where  # type: ignore[attr-defined]
        assert sorted(self.kafka.committed) == sorted(stored_values(self.engine)), where
        assert self.kafka.ongoing is None, where
        pool = manager_of(dual_write).process.pool
        assert pool.heartbeat.is_beating, where
        assert not pool.waiting, where
        assert [slot.user for slot in pool.slots()] == [None], where
        assert [slot.lease for slot in pool.slots()] == pool.registry.held, where


@pytest.fixture
def world(sqlite_url: str) -> Iterator[StruckWorld]:
    ready_engine(sqlite_url).dispose()
    engine = create_engine(sqlite_url, connect_args={"timeout": 2})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    made = StruckWorld(engine)
    gc.disable()  # what is left to the garbage collector is left for long
    yield made
    gc.enable()
    for dual_write in made.made:
        dual_write.close(1)
    engine.dispose()


Act = Callable[[str], None]


def plain(dual_write: DualWrite) -> Act:
    def unit(value: str) -> None:
        with dual_write.transaction() as tx:
            write(tx, value)

    return unit


def decorated(dual_write: DualWrite) -> Act:
    def decorated_unit(value: str) -> None:
        dual_write.transactional(retries=2)(write)(value)

    return decorated_unit


def raising(dual_write: DualWrite) -> Act:
    def raising_unit(value: str) -> None:
        try:
            with dual_write.transaction() as tx:
                write(tx, value)
                raise UserError
        except UserError:
            pass

    return raising_unit


def strike_the_entry_of_exit(world: StruckWorld, unit: Act, kind: type[BaseException]) -> BaseException:
    """Strike ``unit`` where its block's ``__exit__`` begins; what was raised, with its traceback."""
    for at in range(1, 1000):
        striker = Striker(at, kind("limit"), str(block.__file__))
        try:
            with striker:
                unit(f"dead {at}")
        except kind as error:
            if striker.is_entry_of == "Block.leave":
                return error
    raise AssertionError("there is no such place")


@pytest.mark.parametrize("kind", [LimitError, Interrupt])
@pytest.mark.parametrize("raises", [False, True])
def test_a_limit_at_the_entry_of_exit_ends_the_unit_even_if_the_exception_is_kept(
    world: StruckWorld, kind: type[BaseException], raises: bool
) -> None:
    dual_write = world.warm()
    kept = strike_the_entry_of_exit(world, raising(dual_write) if raises else plain(dual_write), kind)
    assert world.engine.pool.checkedout() == 0, "no other transaction waits for it"  # type: ignore[attr-defined]
    manager_of(dual_write).process.pool.beat()
    assert world.kafka.ongoing is None
    assert [slot.user for slot in manager_of(dual_write).process.pool.slots()] == [None]
    world.check_works(dual_write, "the entry")
    assert kept.__traceback__ is not None


def test_a_kept_block_struck_at_the_entry_of_exit_is_ended_by_the_next_unit(world: StruckWorld) -> None:
    """The block is in a variable, or an ExitStack has it: nobody drops it."""
    dual_write = world.warm()
    blocks: list[Any] = []

    def unit(value: str) -> None:
        blocks.append(dual_write.transaction())
        with blocks[-1] as tx:
            write(tx, value)

    try:
        raise strike_the_entry_of_exit(world, unit, LimitError)
    except LimitError:
        world.write(dual_write)
    assert sorted(world.kafka.committed) == sorted(stored_values(world.engine))
    assert world.kafka.ongoing is None


def test_a_block_can_be_left_by_an_exit_stack_and_by_hand(world: StruckWorld) -> None:
    dual_write = world.warm()
    with contextlib.ExitStack() as stack:
        write(stack.enter_context(dual_write.transaction()), "by a stack")
    block = dual_write.transaction()
    write(block.__enter__(), "by hand")
    block.__exit__(None, None, None)
    with pytest.raises(InvalidTransactionStateError, match="left twice"):
        block.__exit__(None, None, None)
    assert world.kafka.committed[-2:] == stored_values(world.engine)[-2:] == ["by a stack", "by hand"]


UNITS = [plain, decorated, raising]


def strike_units(world: StruckWorld, unit: Callable[[DualWrite], Act], step: int, *, is_cold: bool) -> list[str]:
    """Strike every ``step``-th place of a unit of work; the places."""
    places: list[str] = []
    for kind in (LimitError, Interrupt):
        dual_write = world.make() if is_cold else world.warm()
        at = 1 if kind is LimitError else 1 + step // 2
        while True:
            striker = world.strike(unit(dual_write), at, kind)
            if not striker.where:
                break
            if is_cold:  # SQLAlchemy's own blocks, struck as they end, are left to the garbage collector
                striker.forget()
                gc.collect()
            world.check_works(dual_write, striker.where)
            places.append(striker.where)
            at += step
            if is_cold:
                dual_write.close()
                dual_write = world.make()
        dual_write.close()
    return places


@pytest.mark.parametrize("unit", UNITS)
def test_a_limit_at_sampled_places_of_a_unit_spares_other_threads_and_is_truthful(
    world: StruckWorld, unit: Callable[[DualWrite], Act]
) -> None:
    assert len(strike_units(world, unit, SOME, is_cold=False)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_a_limit_at_every_place_of_a_unit_spares_other_threads_and_is_truthful(
    world: StruckWorld, unit: Callable[[DualWrite], Act]
) -> None:
    places = strike_units(world, unit, 1, is_cold=False)
    assert any("pool.py" in where for where in places)
    assert any("driver.py" in where for where in places)


@pytest.mark.slow
def test_a_limit_in_a_first_unit_and_its_recovery_loses_no_lease(world: StruckWorld) -> None:
    places = strike_units(world, plain, 7, is_cold=True)
    assert any("lease_registry.py" in where for where in places)
    assert any("sequence.py" in where for where in places)


@pytest.mark.parametrize("unit", [plain, raising])
def test_a_limit_in_sqlalchemy_while_it_ends_a_transaction_reaches_the_caller(
    world: StruckWorld, unit: Callable[[DualWrite], Act]
) -> None:
    """SQLAlchemy then raises an AssertionError, and the limit is only its context."""
    dual_write = world.warm()
    act, at, ends = unit(dual_write), 0, set[str]()
    while True:
        at += 1
        striker = Striker(at, LimitError("limit"), str(base.__file__))
        value = f"{act.__name__} {at}"
        raised: BaseException | None = None
        try:
            with striker:
                act(value)
        except (LimitError, UnitCommitted, InDoubtError) as error:
            raised = error
        except StatementError as error:  # SQLAlchemy wraps so what strikes it while it prepares a statement
            raised = error.orig
        assert not isinstance(raised, AssertionError), striker.where
        if not striker.where:
            break
        if raised is not None:  # SQLAlchemy logs what strikes it while it closes a cursor
            world.check_truth(value, raised, striker)
            ends.add(striker.is_entry_of)
    assert "RootTransaction._do_commit" in ends if unit is plain else "RootTransaction._do_rollback" in ends
    in_thread(lambda: world.write(dual_write), "SQLAlchemy")
    assert recovered(dual_write)
    assert sorted(world.kafka.committed) == sorted(stored_values(world.engine))
