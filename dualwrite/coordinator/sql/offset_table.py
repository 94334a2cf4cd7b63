"""The table of consumers' offsets.

A consumer reads its offsets at an assignment, and advances them in the unit of work that uses the records.

No broker fences a zombie's writes to this table, so each move is a compare-and-set on the stored offset. Two members
may move the same partition: the member that has lost it, and the member that it was assigned to. The later move finds
another offset, and its unit of work is rolled back.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Engine, Integer, and_, case, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.rules.positions import Move
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import refused_own_row
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.errors import RebalancedError
from dualwrite.ids import TopicPartition

AT_ONCE = 100
"""Most partitions in one statement: SQLite allows at most a thousand terms in a condition."""


class StoredOffset(NamedTuple):
    """The offset at which a group continues."""

    offset: int
    leader_epoch: int | None = None
    """Of the record before it, if known."""
    cluster_id: str | None = None
    """The Kafka cluster whose records it counts; None if not known yet."""


class OffsetTable:
    """The offsets in the database of ``engine``.

    :param store: of the same engine; opens the transactions outside of units of work.
    """

    def __init__(self, engine: Engine, store: SqlDecisionStore) -> None:
        self._engine = engine
        self._store = store
        self._database = database_of(engine.dialect)

    def read(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """All offsets that ``group`` has stored.

        :raises DatabaseNotReadyError: if the table does not exist.
        """
        columns = (table.c.topic, table.c.partition, table.c.next_offset, table.c.leader_epoch, table.c.cluster_id)
        with self._store.connection() as connection, clear_errors(self._engine):
            rows = connection.execute(
                select(*columns).where(table.c.group_id == group), execution_options=ours(connection)
            ).all()
        return {TopicPartition(topic, index): StoredOffset(*stored) for topic, index, *stored in rows}

    def begin(self, group: str, partition: TopicPartition, offset: int, cluster_id: str | None) -> None:
        """Store ``offset`` as the first of ``group`` in ``partition``, unless another member has just stored one.

        :raises ConfigurationError: if the database refuses the row although it is not there.
        """
        try:
            with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
                connection.execute(
                    insert(table).values(
                        group_id=group,
                        topic=partition.topic,
                        partition=partition.partition,
                        next_offset=offset,
                        updated_at=self._database.now(),
                        cluster_id=cluster_id,
                    ),
                    execution_options=ours(connection),
                )
        except Exception as error:
            if not isinstance(database_error_of(error), IntegrityError):
                raise
            if partition not in self.read(group):
                raise refused_own_row(table, error) from error

    def move(
        self,
        connection: Connection,
        group: str,
        moves: Sequence[Move],
        epochs: Mapping[TopicPartition, int],
        cluster_id: str | None,
    ) -> None:
        """Advance the offsets of ``group`` in the transaction of ``connection``, AT_ONCE partitions per UPDATE.

        :param epochs: the leader epochs that are known.
        :param cluster_id: the cluster that the records were read from.
        :raises RebalancedError: if a stored offset is not the one in ``moves``, or of another cluster: another member,
            or ``dualwrite move``, has changed it.
        """
        for start in range(0, len(moves), AT_ONCE):
            self._move(connection, group, moves[start : start + AT_ONCE], epochs, cluster_id)

    def _move(
        self,
        connection: Connection,
        group: str,
        moves: Sequence[Move],
        epochs: Mapping[TopicPartition, int],
        cluster_id: str | None,
    ) -> None:
        rows = [(_is(move.partition), move) for move in moves]
        statement = (
            update(table)
            .where(table.c.group_id == group)
            .where(or_(table.c.cluster_id.is_(None), table.c.cluster_id == cluster_id))
            .where(or_(*(and_(row, table.c.next_offset == move.stored) for row, move in rows)))
            .values(
                next_offset=case(*((row, literal(move.offset, BigInteger())) for row, move in rows)),
                leader_epoch=case(*((row, literal(epochs.get(move.partition), Integer())) for row, move in rows)),
                updated_at=self._database.now(),
                cluster_id=cluster_id,
            )
        )
        with clear_errors(self._engine):
            self._database.find_by_key(connection, on=True)
            moved = connection.execute(statement, execution_options=ours(connection)).rowcount
            self._database.find_by_key(connection, on=False)
        if moved != len(moves):
            raise RebalancedError(
                f"group {group!r}: another member has moved on {len(moves) - moved} of the {len(moves)} partitions "
                f"that this unit of work has read ({', '.join(str(move.partition) for move in moves[:3])}"
                f"{', …' if len(moves) > 3 else ''}): it is rolled back; call seek_to_stored(consumer), and poll again"
            )


def _is(partition: TopicPartition) -> ColumnElement[bool]:
    """The condition that finds the row of ``partition``."""
    return and_(table.c.topic == partition.topic, table.c.partition == partition.partition)
