"""Whole batches without a JVM: what the driver and the tasks do, called by hand, over a real broker and database."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, select

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.spark.batch.comparing import BatchResult
from dualwrite.spark.batch.task_input import TaskInput
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.spark.plan.options import WriteOptions
from tests.support.peer_clients.kafka_helpers import visible
from tests.support.spark.expected_rows import options, schema

TOPIC = "things"
SCHEMA = schema(id="integer", note="string", key="string")
Rows = Sequence[tuple[int, str, str]]
things = Table(
    TOPIC,
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("note", String(50)),
    mysql_charset="utf8mb4",
)
_attempts = count(1)


def rows(begin: int, end: int, note: str = "note") -> Rows:
    return [(number, note, f"k{number}") for number in range(begin, end)]


def options_for(url: str, servers: str, **changed: Any) -> WriteOptions:
    given: dict[str, Any] = {
        "url": url,
        "dbtable": TOPIC,
        "topic": TOPIC,
        "application": "batches",
        "job": "job",
        "kafka.bootstrap.servers": servers,
        "batchsize": 7,
        "leaseTimeout": 60,
        "driverBytes": 0,
    }
    return options(**{**given, **changed})


def begun(options: WriteOptions, batch_id: int | None = None, on_step: Any = None) -> tuple[WholeBatch, TaskInput]:
    batch = WholeBatch(options, on_step)
    return batch, batch.begin(batch.check(SCHEMA, "UTC"), batch_id).returning(1)


def written(work: TaskInput, partitions: Sequence[Rows]) -> list[PreparedTask | None]:
    """What the winners of all tasks tell the driver; four at a time."""
    with ThreadPoolExecutor(4) as threads:
        tasks = [threads.submit(work.write, each, part, next(_attempts)) for part, each in enumerate(partitions)]
        return [task.result(60) for task in tasks]


def write(
    options: WriteOptions, partitions: Sequence[Rows], batch_id: int | None = None, on_step: Any = None
) -> BatchResult:
    """A whole batch."""
    batch, work = begun(options, batch_id, on_step)
    return batch.commit(work, written(work, partitions), batch_id)


def stored(engine: Engine) -> Mapping[int, str]:
    with engine.connect() as connection:
        return {row.id: row.note for row in connection.execute(select(things))}


def read(servers: str) -> Counter[bytes]:
    """What a read_committed consumer sees."""
    return Counter(visible(servers, TOPIC))


def json_of(given: Rows) -> Counter[bytes]:
    return Counter(b'{"id":%d,"note":"%s"}' % (number, note.encode()) for number, note, _ in given)


def open_slots(engine: Engine) -> list[str]:
    """What is leased by anybody."""
    table = kafka_transaction_state
    with engine.connect() as connection:
        return sorted(connection.scalars(select(table.c.transactional_id).where(table.c.owner != "")))


def staged_rows(engine: Engine) -> int:
    """In whatever table there is for staged rows."""
    with engine.connect() as connection:
        names = [name for name in connection.dialect.get_table_names(connection) if name.startswith("dualwrite_staged")]
        return sum(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {name}").scalar_one() for name in names)


def failing_at(step: str, error: type[BaseException] = RuntimeError) -> Callable[[str], None]:
    """An observer of which one step fails."""

    def observe(name: str) -> None:
        if name == step:
            raise error(step)

    return observe


def both_or_neither(engine: Engine, servers: str, all_rows: Rows) -> int:
    """How many of ``all_rows`` are there: each on both sides, once, or on neither."""
    in_database = stored(engine)
    expected = json_of([row for row in all_rows if row[0] in in_database])
    assert read(servers) == expected
    return len(in_database)
