"""The state table and the positions of loads."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "kafka_transaction_state",
        sa.Column("transactional_id", sa.String(255), primary_key=True),
        sa.Column("prepared_txn_state", sa.String(255), nullable=False, server_default=""),
        sa.Column("anchor", sa.String(255)),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(32)),
    )
    op.create_table(
        "dualwrite_load_position",
        sa.Column("load_id", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    """Drop both tables, and with them every decision: only after all applications are stopped and recovered."""
    op.drop_table("dualwrite_load_position")
    op.drop_table("kafka_transaction_state")
