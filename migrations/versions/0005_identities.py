"""What tells a state row that the database, the cluster or the process is not what it was."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import MOMENT, add_column, create_table, drop_column, drop_table, rows_of

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = ("lease_version", "cluster_id", "database_id")


def upgrade(op: Operations) -> None:
    """Add three columns, and a table."""
    add_column(op, "kafka_transaction_state", sa.Column("lease_version", sa.BigInteger))
    add_column(op, "kafka_transaction_state", sa.Column("cluster_id", sa.String(255)))
    add_column(op, "kafka_transaction_state", sa.Column("database_id", sa.String(255)))
    create_table(
        op,
        "dualwrite_database",
        sa.Column("database_id", sa.String(255), primary_key=True),
        sa.Column("id_suffix", sa.String(32), nullable=False),
        sa.Column("declared_at", MOMENT, nullable=False),
    )


def downgrade(op: Operations) -> None:
    """Drop them again."""
    drop_table(op, "dualwrite_database")
    for name in reversed(_COLUMNS):
        drop_column(op, "kafka_transaction_state", name)


def losses(connection: sa.Connection) -> Iterator[str]:
    """The columns are filled anew. A copy would take itself for the original."""
    yield from rows_of(connection, "dualwrite_database", "notes that this database is a copy of another")
