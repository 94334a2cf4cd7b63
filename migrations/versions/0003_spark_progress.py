"""Which partitions of a Spark job's batches are written."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import MOMENT, create_table, drop_table, rows_of

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Create a table."""
    create_table(
        op,
        "dualwrite_spark_progress",
        sa.Column("job", sa.String(255), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("partitions", sa.Integer, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
    )


def downgrade(op: Operations) -> None:
    """Drop it again."""
    drop_table(op, "dualwrite_spark_progress")


def losses(connection: sa.Connection) -> Iterator[str]:
    """A batch that Spark runs again would be written again."""
    yield from rows_of(
        connection, "dualwrite_spark_progress", "partitions of Spark jobs, which may be written again", "digest <> ''"
    )
