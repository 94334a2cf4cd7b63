"""A batch that is run again is compared with the one that was committed under its number: its target and its rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from dualwrite import EmbeddedBroker
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import spark_batch
from dualwrite.errors import BatchChangedError, InputError
from dualwrite.spark.batch.comparing import BatchResult
from dualwrite.spark.batch.row_sums import digests_differ
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name
from tests.support.spark.batch_place import BatchPlace, batch_place_on, broker
from tests.support.spark.batches import begun, rows, things, write, written

__all__ = ["broker"]

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")
WRITTEN, KNOWN = BatchResult(True, 20, 20), BatchResult(False, 20, 20)


@pytest.fixture
def place(engine: Engine, broker: EmbeddedBroker) -> Iterator[BatchPlace]:
    yield from batch_place_on(engine, broker)


@pytest.mark.parametrize("driver_bytes", [0, 2**20], ids=["tasks write", "the driver writes"])
def test_the_same_rows_in_other_partitions_and_in_another_order_are_known(place: BatchPlace, driver_bytes: int) -> None:
    options = place.options(driverBytes=driver_bytes)
    assert write(options, [rows(0, 12), [], rows(12, 20)], 1) == WRITTEN
    assert write(options, [rows(0, 12), [], rows(12, 20)], 1) == KNOWN
    assert write(options, [list(reversed(rows(0, 20)))], 1) == KNOWN
    assert write(options, [rows(15, 20), rows(0, 15)], 1) == KNOWN
    place.judge(rows(0, 20))


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        ([rows(0, 19)], "has 19 now"),
        ([rows(0, 20), rows(20, 21)], "has 21 now"),
        ([], "has 0 now"),
        ([rows(0, 19), rows(19, 20, "other")], "some of them differ now"),
        ([rows(0, 19), rows(18, 19)], "some of them differ now"),
        ([[(number, "note", f"k{19 - number}") for number in range(20)]], "some of them differ now"),
    ],
    ids=["fewer", "more", "none", "another value", "a row twice", "keys exchanged"],
)
def test_other_rows_under_a_known_number_are_refused(place: BatchPlace, partitions: Any, said: str) -> None:
    write(place.options(), [rows(0, 20)], 1)
    with pytest.raises(BatchChangedError, match=f"batch 1 of job 'job' was written with 20 rows, and .*{said}"):
        write(place.options(), partitions, 1)
    place.judge(rows(0, 20))
    assert write(place.options(), [rows(20, 40)], 2) == WRITTEN


def test_a_stream_that_numbers_its_batch_at_the_commit_is_compared_too(place: BatchPlace) -> None:
    """A data source does not know the number when its run begins. The tasks know it."""
    write(place.options(), [rows(0, 20)], 1)
    for given, known in ((rows(0, 20), True), (rows(5, 25), False)):
        batch, work = begun(place.options(), None)
        tasks = [work.write(part, number, number, batch_id=1) for number, part in enumerate((given[:7], given[7:]))]
        if known:
            assert batch.commit(work.numbered(1), tasks, 1) == KNOWN
        else:
            with pytest.raises(BatchChangedError, match="some of them differ now"):
                batch.commit(work.numbered(1), tasks, 1)
        place.judge(rows(0, 20))


def test_a_stream_that_numbers_its_batch_at_the_commit_is_refused_for_another_topic(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    other = fresh_name()
    create_topic(place.servers, other, 3)
    batch, work = begun(replace(place.options(), topic=other), None)
    tasks = written(work.numbered(1), [rows(0, 20)])
    with pytest.raises(BatchChangedError, match=f"was written to topic {place.topic}, and not to topic {other}"):
        batch.commit(work.numbered(1), tasks, 1)
    place.judge(rows(0, 20))


def test_rows_that_were_written_meanwhile_are_compared(place: BatchPlace) -> None:
    """The run begins before another driver commits the batch, and so writes its rows in vain."""
    batch, work = begun(place.options(), None)
    tasks = written(work.numbered(1), [rows(5, 25)])
    with place.engine.begin() as connection:
        values = {"job": "job", "batch_id": 1, "run_id": 1, "row_count": 20, "digest": "1:values-0:0"}
        now = database_of(place.engine.dialect).now()
        connection.execute(insert(spark_batch).values(**values, committed_at=now))
        connection.execute(things.insert().values(id=1000))
    with pytest.raises(BatchChangedError, match="some of them differ now"):
        batch.commit(work.numbered(1), tasks, 1)
    assert place.seen() == []


def test_a_batch_of_an_earlier_release_is_compared_by_its_number_of_rows(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    with place.engine.begin() as connection:
        connection.execute(update(spark_batch).values(digest=None, table_name=None, table_id=None, topic=None))
    assert write(place.options(), [rows(5, 25)], 1) == KNOWN
    with pytest.raises(BatchChangedError, match="has 19 now"):
        write(place.options(), [rows(0, 19)], 1)


def test_digests_of_two_versions_are_not_compared(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    with place.engine.begin() as connection:
        connection.execute(update(spark_batch).values(digest="0:values:0"))
    assert write(place.options(), [rows(0, 20)], 1) == KNOWN


def test_skip_reads_no_row_and_compares_nothing(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    given = iter(rows(5, 9))
    batch, work = begun(place.options(knownBatch="skip", topic="elsewhere"), 1)
    assert (work.run, work.sums) == (None, False)
    assert batch.commit(work, [work.write(given, 0, 1)], 1) == KNOWN
    assert list(given) == []
    assert write(place.options(knownBatch="skip"), [rows(20, 40)], 2) == WRITTEN
    assert write(place.options(), [rows(20, 40)], 2) == KNOWN


def test_a_known_number_with_another_topic_is_refused(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    other = fresh_name()
    create_topic(place.servers, other, 3)
    with pytest.raises(BatchChangedError, match=f"was written to topic {place.topic}, and not to topic {other}: give"):
        begun(replace(place.options(), topic=other), 1)
    place.judge(rows(0, 20))


def test_a_known_number_with_another_table_is_refused(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    with place.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE others (id INTEGER PRIMARY KEY, note VARCHAR(50))")
    with pytest.raises(
        BatchChangedError, match=r"was written to table (\S*\.)?things, and not to (\S*\.)?others: give"
    ):
        begun(place.options(dbtable="others"), 1)
    place.judge(rows(0, 20))


def test_a_known_number_whose_table_was_emptied_is_refused(place: BatchPlace) -> None:
    write(place.options(), [], 0)
    write(place.options(), [rows(0, 20)], 1)
    with place.engine.begin() as connection:
        connection.execute(things.delete())
    with pytest.raises(BatchChangedError, match="written with 20 rows, and table things is empty: give"):
        begun(place.options(), 1)
    assert begun(place.options(), 0)[1].run is None


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_known_number_whose_table_was_created_again_is_refused_though_it_has_rows(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    things.drop(place.engine)
    things.create(place.engine)
    write(place.options(), [rows(0, 20)], 2)
    with pytest.raises(BatchChangedError, match=r"written to a table public\.things that is gone, and not to the pres"):
        begun(place.options(), 1)
    assert begun(place.options(dbtable="public.things"), 2)[1].run is None


def test_a_duplicate_key_is_named(place: BatchPlace) -> None:
    write(place.options(), [rows(5, 6)], 1)
    keys = {"sqlite": r"things\.id", "postgresql": r"Key \(id\)=\(5\)", "mysql": "Duplicate entry '5'"}
    said = f"^job 'job': the database refuses a row: .*{keys[place.engine.dialect.name]}"
    with pytest.raises(InputError, match=said):
        write(place.options(), [rows(0, 10)], 2)


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_table_of_a_database_that_was_copied_is_not_taken_for_a_new_one(place: BatchPlace) -> None:
    write(place.options(), [rows(0, 20)], 1)
    with place.engine.begin() as connection:
        connection.execute(update(spark_batch).values(table_id="postgresql:another cluster:5:16384"))
    assert write(place.options(), [rows(0, 20)], 1) == KNOWN


@pytest.mark.parametrize(
    ("before", "now", "differ"),
    [
        ("1:packed-ab:07", "1:packed-ab:07", False),
        ("1:packed-ab:07", "1:packed-ab:08", True),
        ("1:packed-ab:07", "1:lines-ab:08", False),  # the same rows in another form have another sum
        ("1:packed-ab:07", "1:lines-cd:08", True),
        ("1:packed-ab:07", "1:packed-cd:07", True),
        ("1:packed-ab:07", "2:packed-cd:08", False),
    ],
)
def test_digests_differ_if_the_rows_do_for_sure(before: str, now: str, differ: bool) -> None:
    assert digests_differ(before, now) is differ
