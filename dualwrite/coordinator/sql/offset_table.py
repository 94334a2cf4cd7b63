"""The table of consumers' offsets: read at an assignment, moved on in the units of work that the records were used in.

No broker stands between a zombie and this table, so each move says what the row must hold: whoever comes second, a
member that has lost its partitions or the one that has got them, finds another offset there, and its unit of work is
rolled back.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Engine, Integer, and_, case, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.rules.positions import Move
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore, clear_errors
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.errors import RebalancedError
from dualwrite.ids import TopicPartition

AT_ONCE = 100
"""Partitions in one statement: SQLite takes a condition of a thousand terms at most."""


class StoredOffset(NamedTuple):
    """Where a group goes on in a partition; the epoch of the leader that the record before came from, if known."""

    offset: int
    leader_epoch: int | None = None


class OffsetTable:
    """The offsets in the database of ``engine``.

    :param store: of the same engine; makes the transactions of its own.
    """

    def __init__(self, engine: Engine, store: SqlDecisionStore) -> None:
        self._engine = engine
        self._store = store
        self._database = database_of(engine.dialect)

    def read(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """All that ``group`` has stored.

        :raises DatabaseNotReadyError: if there is no such table.
        """
        columns = (table.c.topic, table.c.partition, table.c.next_offset, table.c.leader_epoch)
        with self._store.connection() as connection, clear_errors(self._engine):
            rows = connection.execute(
                select(*columns).where(table.c.group_id == group), execution_options=ours(connection)
            ).all()
        return {TopicPartition(topic, index): StoredOffset(offset, epoch) for topic, index, offset, epoch in rows}

    def begin(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Let ``group`` begin ``partition`` at ``offset``, unless another member has just let it begin."""
        try:
            with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
                connection.execute(
                    insert(table).values(
                        group_id=group,
                        topic=partition.topic,
                        partition=partition.partition,
                        next_offset=offset,
                        updated_at=self._database.now(),
                    ),
                    execution_options=ours(connection),
                )
        except IntegrityError:
            return  # it has; where, read() tells

    def move(
        self, connection: Connection, group: str, moves: Sequence[Move], epochs: Mapping[TopicPartition, int]
    ) -> None:
        """Move the offsets of ``group`` on, in the transaction of ``connection``: one UPDATE for up to AT_ONCE
        partitions.

        :param epochs: the leader epochs that are known.
        :raises RebalancedError: if one of them is not what ``moves`` says: another member has moved it.
        """
        for start in range(0, len(moves), AT_ONCE):
            self._move(connection, group, moves[start : start + AT_ONCE], epochs)

    def _move(
        self, connection: Connection, group: str, moves: Sequence[Move], epochs: Mapping[TopicPartition, int]
    ) -> None:
        rows = [(_is(move.partition), move) for move in moves]
        statement = (
            update(table)
            .where(table.c.group_id == group)
            .where(or_(*(and_(row, table.c.next_offset == move.stored) for row, move in rows)))
            .values(
                next_offset=case(*((row, literal(move.offset, BigInteger())) for row, move in rows)),
                leader_epoch=case(*((row, literal(epochs.get(move.partition), Integer())) for row, move in rows)),
                updated_at=self._database.now(),
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
    """The row of ``partition``."""
    return and_(table.c.topic == partition.topic, table.c.partition == partition.partition)
