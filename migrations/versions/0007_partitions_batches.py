"""The target of a batch whose partitions are written one by one, and which of a job's batches were forgotten."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.migration_ops import add_column, drop_column, rows_of

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLE = "dualwrite_spark_progress"
_TARGET_COLUMNS = {"table_name": 511, "table_id": 255, "topic": 255}


def upgrade(op: Operations) -> None:
    """Add four columns."""
    for name, length in _TARGET_COLUMNS.items():
        add_column(op, _TABLE, sa.Column(name, sa.String(length)))
    add_column(op, _TABLE, sa.Column("forgotten_to", sa.BigInteger))


def downgrade(op: Operations) -> None:
    """Drop them again. A job's own row stays: an earlier release forgets it with the first batch that it forgets."""
    for name in ("forgotten_to", *reversed(_TARGET_COLUMNS)):
        drop_column(op, _TABLE, name)


def losses(connection: sa.Connection) -> Iterator[str]:
    """A number whose batch was forgotten would be written again. The target only compares batches."""
    where = "forgotten_to IS NOT NULL"
    yield from rows_of(connection, _TABLE, "forgotten batches of partitions, which may be written again", where)
