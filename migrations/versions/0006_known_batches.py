"""The content and the target of the committed whole batches, and which of them were forgotten."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import add_column, drop_column, rows_of

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BATCH_COLUMNS = {"digest": 64, "table_name": 511, "table_id": 255, "topic": 255}


def upgrade(op: Operations) -> None:
    """Add four columns to the batches, and one to the runs."""
    for name, length in _BATCH_COLUMNS.items():
        add_column(op, "dualwrite_spark_batch", sa.Column(name, sa.String(length)))
    add_column(op, "dualwrite_spark_run", sa.Column("forgotten_to", sa.BigInteger))


def downgrade(op: Operations) -> None:
    """Drop them again."""
    drop_column(op, "dualwrite_spark_run", "forgotten_to")
    for name in reversed(_BATCH_COLUMNS):
        drop_column(op, "dualwrite_spark_batch", name)


def losses(connection: sa.Connection) -> Iterator[str]:
    """A number whose batch was forgotten would be written again. The rest only compares batches."""
    where = "forgotten_to IS NOT NULL"
    yield from rows_of(connection, "dualwrite_spark_run", "forgotten batches, which may be written again", where)
