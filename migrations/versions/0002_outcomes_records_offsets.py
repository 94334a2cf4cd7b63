"""Heuristic outcomes and where to look for them, records of units that may have to be replayed, consumers' offsets."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import (
    BYTES,
    MOMENT,
    NUMBER,
    add_column,
    create_table,
    drop_column,
    drop_table,
    rows_of,
)

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add a column to the state table, and create three tables."""
    add_column(op, "kafka_transaction_state", sa.Column("first_record", sa.String(255)))
    create_table(
        op,
        "kafka_transaction_outcome",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("transactional_id", sa.String(255), nullable=False),
        sa.Column("prepared_txn_state", sa.String(255), nullable=False),
        sa.Column("first_record", sa.String(255)),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("found_at", MOMENT, nullable=False),
        sa.Column("acknowledged_at", MOMENT),
        sa.Column("acknowledged_by", sa.String(255)),
    )
    create_table(
        op,
        "kafka_transaction_record",
        sa.Column("transactional_id", sa.String(255), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("prepared_txn_state", sa.String(255), nullable=False),
        sa.Column("first_record", sa.String(255)),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("record_key", BYTES),
        sa.Column("record_value", BYTES),
        sa.Column("headers", BYTES),
        sa.Column("record_timestamp", sa.BigInteger, nullable=False),
    )
    create_table(
        op,
        "kafka_consumer_offset",
        sa.Column("group_id", sa.String(255), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("leader_epoch", sa.Integer),
        sa.Column("updated_at", MOMENT, nullable=False),
    )


def downgrade(op: Operations) -> None:
    """Drop them again."""
    drop_table(op, "kafka_consumer_offset")
    drop_table(op, "kafka_transaction_record")
    drop_table(op, "kafka_transaction_outcome")
    drop_column(op, "kafka_transaction_state", "first_record")


def losses(connection: sa.Connection) -> Iterator[str]:
    """Outcomes that nobody has seen to, and offsets that are nowhere else. Records stay after Kafka has them; those
    that it lacks are of such an outcome."""
    yield from rows_of(
        connection, "kafka_transaction_outcome", "outcomes that nobody has acknowledged", "acknowledged_at IS NULL"
    )
    yield from rows_of(connection, "kafka_consumer_offset", "offsets of consumers, which would read again")
