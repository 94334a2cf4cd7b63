"""The state table and the positions of loads."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
ON_MYSQL = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def create(name: str, *columns: sa.Column) -> None:
    """Create a table, unless it is there already: MariaDB and MySQL, whose DDL is in no transaction, keep what was done
    before an upgrade died."""
    if op.get_context().dialect.name in ("mysql", "mariadb"):
        inspector = sa.inspect(op.get_bind())
        wanted = [column.name for column in columns]
        if inspector.has_table(name) and [column["name"] for column in inspector.get_columns(name)] == wanted:
            return
    op.create_table(name, *columns, **ON_MYSQL)


def upgrade() -> None:
    """Create both tables."""
    create(
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
    create(
        "dualwrite_load_position",
        sa.Column("load_id", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
    )


def downgrade() -> None:
    """Drop both tables, and with them every decision: only after all applications are stopped and recovered."""
    op.drop_table("dualwrite_load_position")
    op.drop_table("kafka_transaction_state")
