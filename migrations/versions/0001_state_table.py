"""The state table and the positions of loads."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import MOMENT, create_table, drop_table, rows_of

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Create both tables."""
    create_table(
        op,
        "kafka_transaction_state",
        sa.Column("transactional_id", sa.String(255), primary_key=True),
        sa.Column("prepared_txn_state", sa.String(255), nullable=False, server_default=""),
        sa.Column("anchor", sa.String(255)),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("outcome", sa.String(32)),
    )
    create_table(
        op,
        "dualwrite_load_position",
        sa.Column("load_id", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
    )


def downgrade(op: Operations) -> None:
    """Drop both tables, and with them every decision: only after all applications are stopped and recovered."""
    drop_table(op, "dualwrite_load_position")
    drop_table(op, "kafka_transaction_state")


def losses(connection: sa.Connection) -> Iterator[str]:
    """The state table is left to decide nothing: its slots were all given back."""
    yield from rows_of(connection, "dualwrite_load_position", "the positions of loads, which would begin again")
