"""The comparison while both sides change: keys in flight are looked at again, and a difference stays one."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from dualwrite.comparison.compare import MOST_LOOKED_UP
from dualwrite.comparison.job import Comparison, Difference, Verdict
from dualwrite.comparison.table import RowKeys, TableKeys
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.schema import upgrade_engine
from tests.support.comparison.comparison_site import ComparisonSite, found, pairs
from tests.support.peer_clients.kafka_helpers import fresh_name

ONLY_IN_TABLE, ONLY_IN_TOPIC, NOT_EQUALLY_OFTEN, OTHER_VALUE, UNSETTLED = Difference


class Pauses:
    """The clock of a comparison, whose pauses take no time. The first one runs an action."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        self.slept: list[float] = []
        self._action: Iterator[Callable[[], object]] = iter([action])

    def clock(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        next(self._action, lambda: None)()


def compare(site: ComparisonSite, pauses: Pauses, **options: object) -> Comparison:
    return site.compare(wait=1, clock=pauses.clock, sleep=pauses.sleep, **options)


@pytest.fixture
def ready(any_site: ComparisonSite) -> ComparisonSite:
    """Row and record 1 are there."""
    any_site.create()
    any_site.insert([1])
    any_site.produce(*pairs([1]))
    return any_site


@pytest.mark.slow_cases
def test_a_row_whose_transaction_is_committed_later_is_no_difference(ready: ComparisonSite) -> None:
    ready.insert([2])
    in_flight = ready.open_transaction(*pairs([2]))
    assert found(ready.compare()) == {UNSETTLED: ["2"]}
    assert found(compare(ready, Pauses(in_flight.commit_transaction))) == {}


@pytest.mark.slow_cases
def test_a_row_whose_transaction_is_aborted_is_a_difference(ready: ComparisonSite) -> None:
    ready.insert([2])
    in_flight = ready.open_transaction(*pairs([2]))
    pauses = Pauses(in_flight.abort_transaction)
    assert found(compare(ready, pauses)) == {ONLY_IN_TABLE: ["2"]}
    assert sum(pauses.slept) == pytest.approx(0.1 + 1), "it has looked again for the whole time"


def test_a_difference_that_no_open_transaction_explains_is_one(ready: ComparisonSite) -> None:
    ready.insert([2])
    ready.open_transaction(*pairs([7]))
    assert found(ready.compare()) == {ONLY_IN_TABLE: ["2"]}


def test_a_deletion_in_an_open_transaction_is_not_settled(ready: ComparisonSite) -> None:
    ready.sql("DELETE FROM orders")
    in_flight = ready.open_transaction(("1", None))
    assert found(ready.compare()) == {UNSETTLED: ["1"]}
    assert found(compare(ready, Pauses(in_flight.commit_transaction))) == {}


@pytest.mark.parametrize("change", ["DELETE FROM orders WHERE id = 2", "UPDATE orders SET id = 1 WHERE id = 2"])
def test_a_row_that_goes_meanwhile_is_no_difference(site: ComparisonSite, change: str) -> None:
    site.create("id INTEGER")
    site.insert([1, 2])
    site.produce(*pairs([1]))
    result = compare(site, Pauses(lambda: site.sql(change)), last=True)
    assert found(result) == {}
    assert result.rows == 2, "as it was read first"


def test_a_record_that_comes_meanwhile_is_read(ready: ComparisonSite) -> None:
    ready.insert([2])
    result = compare(ready, Pauses(lambda: ready.produce(*pairs([2]))))
    assert found(result) == {}
    assert result.records == 2


def test_a_row_that_comes_meanwhile_is_found(ready: ComparisonSite) -> None:
    ready.produce(*pairs([2]))
    assert found(compare(ready, Pauses(lambda: ready.insert([2])))) == {}


def test_records_behind_an_open_transaction_are_not_taken_for_equal(ready: ComparisonSite) -> None:
    """Nothing differs in the records before it: only a transaction's end shows the duplicate, and the record without a
    row."""
    hanging = ready.open_transaction(("x", "{}"))
    ready.produce(*pairs([1, 99]))
    pauses = Pauses()
    result = compare(ready, pauses)
    assert (found(result), result.verdict, result.after_stable) == ({}, Verdict.UNKNOWN, {0: 4})
    assert sum(pauses.slept) == pytest.approx(1), "it has waited for the whole time"
    assert ready.compare().after_stable == {0: 4}
    result = compare(ready, Pauses(hanging.abort_transaction))
    assert (result.verdict, result.after_stable) == (Verdict.DIFFERENT, {})
    assert found(result) == {NOT_EQUALLY_OFTEN: ["1"], ONLY_IN_TOPIC: ["99"]}


def test_a_difference_is_one_although_records_were_not_compared(ready: ComparisonSite) -> None:
    ready.insert([2])
    ready.open_transaction(*pairs([7]))
    result = compare(ready, Pauses())
    assert (result.verdict, result.after_stable) == (Verdict.DIFFERENT, {0: 1})


def test_an_application_that_always_has_a_transaction_open_is_compared(ready: ComparisonSite) -> None:
    """The last stable offset never reaches the end, but it passes the end that the comparison began with."""
    producers = [ready.open_transaction(*pairs([2]))]
    ready.insert([2])

    def begin_another_and_end_the_first() -> None:
        producers.append(ready.open_transaction(*pairs([3])))
        producers[0].commit_transaction()
        ready.insert([3])

    result = compare(ready, Pauses(begin_another_and_end_the_first))
    assert (result.after_stable, result.records) == ({}, 2)
    assert found(result) == {UNSETTLED: ["3"]}
    assert result.verdict is Verdict.UNKNOWN
    pauses = Pauses(producers[1].commit_transaction)
    assert compare(ready, pauses).verdict is Verdict.SAME
    assert len(pauses.slept) == 1


@pytest.mark.slow_cases
def test_units_of_work_that_run_meanwhile_are_never_a_difference(any_site: ComparisonSite) -> None:
    """They insert rows with their records, and delete rows with tombstones, all the time."""
    any_site.create()
    upgrade_engine(any_site.engine)
    done = threading.Event()
    application = fresh_name()

    def write() -> int:
        with DualWrite(any_site.engine, any_site.broker.client_config, application=application) as dual_write:
            for number in itertools.count():
                with dual_write.transaction() as tx:
                    tx.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})
                    tx.produce(any_site.topic, b"{}", key=str(number))
                    if number % 3 == 2:
                        tx.execute(text("DELETE FROM orders WHERE id = :id"), {"id": number - 1})
                        tx.produce(any_site.topic, None, key=str(number - 1))
                if done.is_set():
                    return number + 1
        raise AssertionError

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            results = [any_site.compare(wait=60) for _ in range(8)]
        finally:
            done.set()
        units = writing.result()
    assert [found(result) for result in results] == [{}] * 8
    assert [result.verdict for result in results] == [Verdict.SAME] * 8
    assert results[0].records < results[-1].records
    result = any_site.compare()
    assert found(result) == {}
    assert result.records == units + units // 3


def test_a_row_that_has_just_come_is_not_settled(ready: ComparisonSite) -> None:
    """Its record may be newer than the last look at the topic."""
    ready.produce(("1", "{}"))
    pauses = Pauses(lambda: ready.sql("DELETE FROM orders"))
    pauses_at_the_end = Pauses()
    clock = iter([0.0, 0.0, 9.0])
    result = ready.compare(wait=1, clock=lambda: next(clock), sleep=pauses.sleep)
    assert found(result) == {UNSETTLED: ["1"]}
    assert found(compare(ready, pauses_at_the_end)) == {ONLY_IN_TOPIC: ["1"]}


def test_a_value_that_has_just_changed_is_not_settled(site: ComparisonSite) -> None:
    site.create()
    site.sql("INSERT INTO orders VALUES (1, 'tea')")
    site.produce(("1", '{"id": 1, "item": "milk"}'))
    clock = iter([0.0, 0.0, 9.0])
    pauses = Pauses(lambda: site.sql("UPDATE orders SET item = 'water'"))
    result = site.compare(wait=1, clock=lambda: next(clock), sleep=pauses.sleep, values=True)
    assert found(result) == {UNSETTLED: ["1"]}
    assert found(compare(site, Pauses(), values=True)) == {OTHER_VALUE: ["1"]}


def test_a_row_that_goes_after_it_was_looked_at_again_is_not_missed_in_the_topic(
    site: ComparisonSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is read before the rows: read later, it would lack the record of a row that was there."""
    site.create()
    site.insert([1])
    in_flight = site.open_transaction(*pairs([1]))
    read, look_up = TableKeys.read, TableKeys.look_up

    def read_and_commit(table: TableKeys) -> Iterator[RowKeys]:
        yield from read(table)
        in_flight.commit_transaction()

    def look_up_and_delete(table: TableKeys, keys: Sequence[bytes]) -> Iterator[RowKeys]:
        yield from look_up(table, keys) or ()
        site.sql("DELETE FROM orders")
        site.produce(("1", None))

    monkeypatch.setattr(TableKeys, "read", read_and_commit)
    monkeypatch.setattr(TableKeys, "look_up", look_up_and_delete)
    assert found(site.compare()) == {}


def test_sides_that_agree_are_not_looked_at_again(ready: ComparisonSite) -> None:
    pauses = Pauses()
    assert compare(ready, pauses).verdict is Verdict.SAME
    assert pauses.slept == []


def test_the_pauses_between_looks_grow(ready: ComparisonSite) -> None:
    ready.insert([2])
    pauses = Pauses()
    compare(ready, pauses)
    assert pauses.slept == pytest.approx([0.1, 0.2, 0.4, 0.3])


@pytest.mark.slow
@pytest.mark.parametrize("number", [MOST_LOOKED_UP, MOST_LOOKED_UP + 1])
def test_many_keys_are_looked_at_again(ready: ComparisonSite, number: int) -> None:
    ready.insert(range(2, number + 2))
    assert ready.compare(limit=0).differing[ONLY_IN_TABLE] == number
    arriving = Pauses(lambda: ready.produce(*pairs(range(2, number + 2))))
    assert compare(ready, arriving).verdict is Verdict.SAME
    ready.sql("DELETE FROM orders WHERE id > 1")
    deleted = [(str(key), None) for key in range(2, number + 2)]
    assert compare(ready, Pauses(lambda: ready.produce(*deleted))).verdict is Verdict.SAME


def test_a_partition_that_is_added_meanwhile_is_read(site: ComparisonSite) -> None:
    site.create()
    site.insert([1])

    def add_partition() -> None:
        site.add_partitions(3)
        site.produce(*pairs([1]), partition=2)

    assert found(compare(site, Pauses(add_partition))) == {}
