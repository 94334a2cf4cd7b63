"""Runs of Spark jobs that commit whole batches, and the batches that they have committed."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import MOMENT, create_table, drop_table, rows_of

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Create two tables."""
    create_table(
        op,
        "dualwrite_spark_run",
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("staging_schema", sa.String(255)),
        sa.Column("staging_table", sa.String(255), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
    )
    create_table(
        op,
        "dualwrite_spark_batch",
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("committed_at", MOMENT, nullable=False),
    )


def downgrade(op: Operations) -> None:
    """Drop them again. Tables of staged rows stay; nobody needs what is in them."""
    drop_table(op, "dualwrite_spark_batch")
    drop_table(op, "dualwrite_spark_run")


def losses(connection: sa.Connection) -> Iterator[str]:
    """A batch of a stream that is forgotten would be written again."""
    yield from rows_of(connection, "dualwrite_spark_batch", "batches of Spark jobs, which would be written again")
