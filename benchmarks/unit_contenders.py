"""Ways to write rows to a database and records to Kafka, as people write them: what a dual write is compared with.

Each takes a :class:`UnitPlace` and gives one :data:`Unit` for each worker thread, to be called with the payloads of one
unit of work: so many rows, and as many records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Producer
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, create_engine, insert

from dualwrite import DualWrite

NATIVE, LIBRDKAFKA = "dualwrite, native", "dualwrite, librdkafka"
BACKGROUND = "dualwrite, native, in the background"
DUAL_WRITES = (NATIVE, BACKGROUND, LIBRDKAFKA)
NAIVE, TRANSACTION, OUTBOX, DATABASE = "naive pair", "Kafka transaction", "outbox", "database alone"

PAYLOAD_SIZE = 200
_LOCK_SECONDS = 60
"""That SQLite's driver waits for the write lock: its default of 5 is short for eight workers who take no turns."""

Unit = Callable[[Sequence[str]], None]


class Tables:
    """The tables of one measurement."""

    def __init__(self, name: str) -> None:
        self.metadata = MetaData()
        self.rows = self._table(f"{name}_rows")
        self.outbox = self._table(f"{name}_outbox")

    def _table(self, name: str) -> Table:
        identity = Column("id", Integer, primary_key=True)
        return Table(name, self.metadata, identity, Column("payload", String(255), nullable=False))


@dataclass(frozen=True)
class UnitPlace:
    """Where one process does its units of work.

    :param first: the number of its first worker; those of other processes have others.
    """

    engine: Engine
    bootstrap: str
    name: str
    workers: int = 1
    first: int = 0

    @property
    def tables(self) -> Tables:
        """Of this measurement."""
        return Tables(self.name)


def engine_of(url: str, workers: int = 1) -> Engine:
    """As SQLAlchemy's documentation has it: with room in the pool for all workers, and the defaults of the driver."""
    waiting = {"connect_args": {"timeout": _LOCK_SECONDS}} if url.startswith("sqlite") else {}
    return create_engine(url, pool_size=workers, **waiting)


def write(connection: Connection, table: Table, payloads: Sequence[str]) -> None:
    """One INSERT."""
    if len(payloads) == 1:
        connection.execute(insert(table), {"payload": payloads[0]})
    else:
        connection.execute(insert(table), [{"payload": payload} for payload in payloads])


def database(place: UnitPlace) -> list[Unit]:
    """The rows alone: what no way of writing to two places can be faster than."""
    rows = place.tables.rows

    def unit(payloads: Sequence[str]) -> None:
        with place.engine.begin() as connection:
            write(connection, rows, payloads)

    return [unit] * place.workers


def naive(place: UnitPlace) -> list[Unit]:
    """COMMIT, then produce and flush, with the one idempotent producer of the process: a crash between them loses the
    records, and an error there leaves the caller with a row that is committed."""
    rows = place.tables.rows
    producer = idempotent_producer(place.bootstrap)

    def unit(payloads: Sequence[str]) -> None:
        with place.engine.begin() as connection:
            write(connection, rows, payloads)
        for payload in payloads:
            producer.produce(place.name, payload.encode())
        producer.flush()

    return [unit] * place.workers


def transaction(place: UnitPlace) -> list[Unit]:
    """A Kafka transaction around the database's: a crash between the two commits loses the records, as they are aborted
    when the producer comes back. One producer for each worker, as each can have one transaction open."""
    rows = place.tables.rows

    def of_worker(number: int) -> Unit:
        producer = Producer({**_quick(place.bootstrap), "transactional.id": f"{place.name}-{number}"})
        producer.init_transactions()

        def unit(payloads: Sequence[str]) -> None:
            producer.begin_transaction()
            with place.engine.begin() as connection:
                write(connection, rows, payloads)
                for payload in payloads:
                    producer.produce(place.name, payload.encode())
            producer.commit_transaction()

        return unit

    return [of_worker(number) for number in range(place.first, place.first + place.workers)]


def outbox(place: UnitPlace) -> list[Unit]:
    """The records in a table, in the same database transaction; a relay (unit_clients.py) sends them on."""
    tables = place.tables

    def unit(payloads: Sequence[str]) -> None:
        with place.engine.begin() as connection:
            write(connection, tables.rows, payloads)
            write(connection, tables.outbox, payloads)

    return [unit] * place.workers


def native(place: UnitPlace) -> list[Unit]:
    """The recipe with the native producer."""
    return _dual_writes(DualWrite(place.engine, _found(place), application=place.name, producer="native"), place)


def background(place: UnitPlace) -> list[Unit]:
    """The same, without waiting for the answer to Kafka's commit."""
    dual_write = DualWrite(
        place.engine, _found(place), application=place.name, producer="native", completion="background"
    )
    return _dual_writes(dual_write, place)


def librdkafka(place: UnitPlace) -> list[Unit]:
    """The recipe with librdkafka."""
    config = {**_found(place), "linger.ms": 0}
    return _dual_writes(DualWrite(place.engine, config, application=place.name, producer="librdkafka"), place)


def _dual_writes(dual_write: DualWrite, place: UnitPlace) -> list[Unit]:
    rows = place.tables.rows

    def unit(payloads: Sequence[str]) -> None:
        with dual_write.transaction() as tx:
            write(tx.connection, rows, payloads)
            for payload in payloads:
                tx.produce(place.name, payload)

    return [unit] * place.workers


def idempotent_producer(bootstrap: str) -> Producer:
    """As the naive pair and the relay have one."""
    return Producer({**_quick(bootstrap), "enable.idempotence": True})


def _quick(bootstrap: str) -> dict[str, object]:
    """Nothing waits for more records to come: every contender flushes at once."""
    return {"bootstrap.servers": bootstrap, "linger.ms": 0}


def _found(place: UnitPlace) -> dict[str, object]:
    return {"bootstrap.servers": place.bootstrap}


CONTENDERS: Mapping[str, Callable[[UnitPlace], list[Unit]]] = {
    NATIVE: native,
    BACKGROUND: background,
    LIBRDKAFKA: librdkafka,
    NAIVE: naive,
    TRANSACTION: transaction,
    OUTBOX: outbox,
    DATABASE: database,
}
