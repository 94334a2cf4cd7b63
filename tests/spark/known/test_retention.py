"""Which numbers of a job are known: the rule, and what it reads from a table of batches."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, create_engine, insert

from dualwrite.errors import BatchChangedError
from dualwrite.spark.known.retention import JobMemory, batch_name, last_beyond, memory_of, require_remembered

UNKNOWN, TOO_LOW = "so it is not known whether it was written", "so it would be forgotten at once: raise keepBatches"


def reason(batch_id: int, keep: int, memory: JobMemory) -> str | None:
    """Why a number is refused; None if it is not."""
    try:
        require_remembered(batch_name("job", batch_id), batch_id, keep, memory)
    except BatchChangedError as error:
        return str(error).partition("), ")[2]
    return None


@pytest.mark.parametrize(
    ("batch_id", "keep", "memory", "expected"),
    [
        (0, 1, JobMemory(None, 0, None), None),
        (20261001, 100, JobMemory(20261122, 1, None), None),
        (5, 2, JobMemory(9, 1, 4), None),
        (5, 2, JobMemory(9, 2, 4), TOO_LOW),
        (5, 3, JobMemory(9, 2, 4), None),
        (4, 3, JobMemory(9, 2, 4), UNKNOWN),
        (3, 100, JobMemory(9, 2, 4), UNKNOWN),
        (4, 2, JobMemory(9, 2, 4), UNKNOWN),
        (4, 5, JobMemory(9, 1, None), None),
    ],
)
def test_a_number_is_refused_if_it_is_unknown_or_would_be(
    batch_id: int, keep: int, memory: JobMemory, expected: str | None
) -> None:
    assert reason(batch_id, keep, memory) == expected


def test_the_error_names_the_batch_the_option_and_the_latest() -> None:
    said = r"^batch 4 of job 'job' is older than the 3 batches .* \(option keepBatches; the latest is 9\), "
    with pytest.raises(BatchChangedError, match=said) as raised:
        require_remembered(batch_name("job", 4), 4, 3, JobMemory(9, 3, None))
    assert not raised.value.retriable


BATCHES = Table("batches", MetaData(), Column("batch_id", BigInteger), Column("table_name", String))


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        BATCHES.create(connection)
        yield connection
    engine.dispose()


def store(connection: Connection, batches: dict[int, bool]) -> None:
    """The batches' numbers; True for one of an earlier release."""
    connection.execute(BATCHES.delete())
    for number, is_earlier in batches.items():
        connection.execute(insert(BATCHES).values(batch_id=number, table_name=None if is_earlier else "things"))


NUMBERS = st.integers(0, 12)


@given(st.dictionaries(NUMBERS, st.booleans()), NUMBERS, st.none() | NUMBERS)
def test_the_table_gives_the_latest_the_higher_and_the_forgotten(
    connection: Connection, batches: dict[int, bool], batch_id: int, forgotten_to: int | None
) -> None:
    batches[batch_id] = False  # the caller has stored it
    store(connection, batches)
    higher = sum(number > batch_id for number in batches)
    if any(batches.values()):  # an earlier release may have forgotten whatever is below
        forgotten_to = max(min(batches.keys() - {batch_id}) - 1, -1 if forgotten_to is None else forgotten_to)
    memory = memory_of(connection, BATCHES, BATCHES.c.batch_id >= 0, batch_id, forgotten_to)
    assert memory == JobMemory(max(batches, default=None), higher, forgotten_to)


@given(st.sets(NUMBERS, min_size=1), st.integers(1, 4), NUMBERS, st.integers(1, 20))
def test_what_an_earlier_release_has_written_and_forgotten_is_never_written_again(
    connection: Connection, written: set[int], kept: int, batch_id: int, keep: int
) -> None:
    """With any later keepBatches. The earlier release has kept the numbers above the latest less its keepBatches."""
    remembered = {number for number in written if number > max(written) - kept}
    store(connection, {batch_id: False, **dict.fromkeys(remembered, True)})
    memory = memory_of(connection, BATCHES, BATCHES.c.batch_id >= 0, batch_id, None)
    if batch_id in written - remembered:
        assert reason(batch_id, keep, memory) == UNKNOWN


@given(st.sets(NUMBERS), st.integers(1, 5))
def test_what_is_beyond_is_below_the_highest_numbers(connection: Connection, numbers: set[int], keep: int) -> None:
    store(connection, dict.fromkeys(numbers, False))
    beyond = sorted(numbers)[:-keep]
    assert last_beyond(connection, BATCHES, BATCHES.c.batch_id >= 0, keep) == max(beyond, default=None)


@pytest.mark.slow
@given(st.sets(NUMBERS), NUMBERS, st.integers(1, 5))
def test_a_number_that_is_accepted_is_not_forgotten_at_once(
    connection: Connection, numbers: set[int], batch_id: int, keep: int
) -> None:
    numbers.discard(batch_id)
    store(connection, dict.fromkeys(numbers, False))
    everything = BATCHES.c.batch_id >= 0
    is_accepted = reason(batch_id, keep, memory_of(connection, BATCHES, everything, batch_id, None)) is None
    store(connection, dict.fromkeys({*numbers, batch_id}, False))
    last = last_beyond(connection, BATCHES, everything, keep)
    assert is_accepted is (last is None or batch_id > last)
