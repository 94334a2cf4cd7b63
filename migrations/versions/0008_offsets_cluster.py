"""The Kafka cluster whose records a stored offset counts."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import add_column, drop_column

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TABLE = "kafka_consumer_offset"


def upgrade(op: Operations) -> None:
    """Add a column. The next unit of work that moves an offset fills it."""
    add_column(op, _TABLE, sa.Column("cluster_id", sa.String(255)))


def downgrade(op: Operations) -> None:
    """Drop it again."""
    drop_column(op, _TABLE, "cluster_id")


def losses(connection: sa.Connection) -> Iterator[str]:
    """The column is filled anew."""
    yield from ()
