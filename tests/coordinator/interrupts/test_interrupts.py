"""KeyboardInterrupt at every line of the coordinator within a unit of work: the next unit works at once, as if nothing
had happened, and the one that was hit is in both or in neither."""

import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager import unit_manager
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules import machine
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.coordinator.steps import driver
from dualwrite.coordinator.unit import block, transaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.event_table import CONFIG, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.coordinator.usual_unit import fail_at, recovered, write, write_unit
from tests.support.user_errors import Interrupt, UserError

Unit = Callable[[DualWrite, str], None]
COORDINATOR = {str(path) for path in Path(driver.__file__).parents[1].rglob("*.py")}
OF_THE_UNIT = {str(module.__file__) for module in (block, driver, machine, transaction, unit_manager)}


class Tracer:
    """Raises Interrupt before the ``at``-th line of ``files`` that this thread runs; None counts them only.

    Not where CPython looks for no signal: at ``try:``, and at a ``with`` line, which is reported for its end too.
    """

    def __init__(self, files: set[str], at: int | None = None) -> None:
        self._files = files
        self._at = at
        self.count = 0
        self.where = ""

    def __enter__(self) -> "Tracer":
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, what: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, what: str, argument: Any) -> Any:
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno).lstrip()
        if what == "line" and not line.startswith(("with ", "try:")):
            self.count += 1
            if self.count >= (self._at or sys.maxsize) and not is_finalizing(frame):
                sys.settrace(None)
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
                raise Interrupt
        return self._line


def is_finalizing(frame: FrameType | None) -> bool:
    """True inside of ``__del__``, out of which nothing is raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    ready_engine(sqlite_url).dispose()
    engine = create_engine(sqlite_url, connect_args={"timeout": 2})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    yield engine
    engine.dispose()


def plain(dual_write: DualWrite, value: str) -> None:
    write_unit(dual_write, value)


def raises(dual_write: DualWrite, value: str) -> None:
    try:
        with dual_write.transaction() as tx:
            write(tx, value)
            raise UserError
    except UserError:
        pass


def joined(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction(), dual_write.transaction() as tx:
        write(tx, value)


def swallowed(dual_write: DualWrite, value: str) -> None:
    """The user's code goes on after the interrupt: if the unit is lost, it learns that at the end."""
    with dual_write.transaction() as tx:
        with suppress(Interrupt):
            tx.produce("events", "before")
        write(tx, value)


def nothing_is_open(engine: Engine) -> bool:
    return bool(engine.pool.checkedout() == 0)  # type: ignore[attr-defined]


def both_are_equal(engine: Engine, kafka: FakeKafka, *values: str) -> bool:
    rows = stored_values(engine)
    return (
        rows == [value for value in kafka.committed if value != "before"]
        and kafka.ongoing is None
        and set(values) <= set(rows)
    )


def interrupt_everywhere(
    make: Callable[[], DualWrite],
    engine: Engine,
    kafka: FakeKafka,
    unit: Unit,
    files: set[str],
    *,
    is_cold: bool = False,
) -> set[str]:
    """Run ``unit`` with an interrupt at each of its lines, one after the other; the places that were hit."""
    places: set[str] = set()
    dual_write = make()
    at = 0
    while True:
        at += 1
        value = f"{unit.__name__} {at}"
        tracer = Tracer(files, at)
        has_ended = False
        try:
            with tracer:
                unit(dual_write, value)
            has_ended = unit is not raises
        except Interrupt:
            pass
        except InvalidTransactionStateError:
            assert unit is swallowed
        assert recovered(dual_write), tracer.where
        assert nothing_is_open(engine), tracer.where
        places.add(tracer.where)
        write_unit(dual_write, f"after {at}")
        assert both_are_equal(engine, kafka, f"after {at}", *[value] * has_ended), tracer.where
        if not tracer.where:
            return places
        if is_cold:
            dual_write.close()
            dual_write = make()


@pytest.fixture
def make(engine: Engine, kafka: FakeKafka) -> Iterator[Callable[[], DualWrite]]:
    made: list[DualWrite] = []

    def make_one() -> DualWrite:
        options: Any = {"participant": kafka.participant, "pool_size": 1, "acquire_timeout": 5, "lease_timeout": 3000}
        made.append(DualWrite(engine, CONFIG, application="orders", **options))
        return made[-1]

    gc.disable()  # what is left to the garbage collector is left for long
    yield make_one
    gc.enable()
    for dual_write in made:
        dual_write.close(0)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [plain, raises, joined, swallowed])
def test_an_interrupt_at_any_line_of_a_unit_affects_that_unit_only(
    make: Any, engine: Engine, kafka: FakeKafka, unit: Unit
) -> None:
    def warm() -> DualWrite:
        dual_write: DualWrite = make()
        write_unit(dual_write, "first")
        return dual_write

    places = interrupt_everywhere(warm, engine, kafka, unit, OF_THE_UNIT)
    assert len(places) > 100
    assert any(place.startswith("block.py") and "(leave)" in place for place in places)


def test_a_unit_in_an_interrupts_handler_does_not_join_the_interrupted_unit(
    make: Any, engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make()
    count = Tracer({str(transaction.__file__)})
    with count:
        write_unit(dual_write, "first")
    for at in range(1, count.count + 1):
        tracer = Tracer({str(transaction.__file__)}, at)
        try:
            with tracer:
                write_unit(dual_write, f"dead {at}")
        except Interrupt:
            write_unit(dual_write, f"handler {at}")
            assert both_are_equal(engine, kafka, f"handler {at}"), tracer.where


def test_an_abandoned_block_is_ended_by_the_heartbeat_and_by_close(make: Any, engine: Engine, kafka: FakeKafka) -> None:
    dual_write = make()
    for end in (manager_of(dual_write).process.pool.beat, dual_write.close):
        block: Any = dual_write.transaction()
        write(block.__enter__(), "dead")
        del block
        assert nothing_is_open(engine), "others would wait in the database"
        end()
        assert both_are_equal(engine, kafka)
        assert kafka.aborted[-1] == "dead"


def test_an_interrupt_after_a_participant_was_given_back_gives_it_back_no_second_time(
    make: Any, engine: Engine, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another unit of work may use it."""
    dual_write, give_back, given = make(), Slot.give_back, []

    def interrupted(slot: Slot, participant: Any) -> None:
        give_back(slot, participant)
        given.append(participant)
        raise Interrupt

    monkeypatch.setattr(Slot, "give_back", interrupted)
    with pytest.raises(Interrupt):
        write_unit(dual_write, "first")
    assert len(given) == 1
    monkeypatch.undo()
    write_unit(dual_write, "second")
    assert both_are_equal(engine, kafka, "first", "second")


def test_an_interrupt_as_the_participant_of_an_open_transaction_is_closed_does_not_prevent_its_recovery(
    make_dual_write: Callable[..., DualWrite], engine: Engine, kafka: FakeKafka
) -> None:
    """Otherwise the transaction stays open in Kafka until a unit of work needs the slot."""
    strikes = [Interrupt()]

    class Struck(FakeParticipant):
        def close(self) -> None:
            if self.spent and strikes:
                raise strikes.pop()
            super().close()

    dual_write = make_dual_write(engine, participant=lambda _: Struck(kafka))
    fail_at(kafka, "commit")
    with pytest.raises(Interrupt):
        write_unit(dual_write, "one")
    assert not strikes
    assert recovered(dual_write)
    assert both_are_equal(engine, kafka, "one")
    assert dual_write.counters.finished_later == 1


@pytest.mark.slow
@pytest.mark.parametrize("unit", [plain, raises])
def test_an_interrupt_during_the_first_unit_or_its_recovery_affects_that_unit_only(
    make: Any, engine: Engine, kafka: FakeKafka, unit: Unit
) -> None:
    places = interrupt_everywhere(make, engine, kafka, unit, COORDINATOR, is_cold=True)
    assert any("pool.py" in place for place in places)
    assert any("sequence.py" in place for place in places)
