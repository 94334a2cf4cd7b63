"""The tables that this library keeps in the user's database. alembic reads them from ``metadata``.

They are made by ``dualwrite db upgrade --db URL``. The metadata is of its own, so that the user's never sees them.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, MetaData, String, Table
from sqlalchemy.dialects import mysql

VERSION_TABLE = "dualwrite_alembic_version"
"""alembic's own table under a name of ours: users run alembic in the same database."""

metadata = MetaData()

MOMENT = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
"""A moment; on MariaDB and MySQL, which know no time zone in a column, in UTC and with its fraction."""

ON_MYSQL: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""MariaDB's and MySQL's default may be an engine without transactions, and compares without case: ``Orders-0`` would be
``orders-0``, where Kafka has two transactional ids."""

kafka_transaction_state = Table(
    "kafka_transaction_state",
    metadata,
    Column("transactional_id", String(255), primary_key=True),
    # KIP-939's producerId:epoch. Empty: no unit of work was ever committed under this transactional id.
    Column("prepared_txn_state", String(255), nullable=False, server_default=""),
    # topic:partition:offset of the transaction's first record; NULL where every transaction bumps the epoch.
    Column("anchor", String(255)),
    # Raised by each process that takes the transactional id over. Whoever holds a lower one is fenced.
    Column("fencing_token", BigInteger, nullable=False),
    Column("owner", String(255), nullable=False),
    # NULL: the lease does not run out by itself, it is taken over.
    Column("lease_expires_at", MOMENT),
    Column("updated_at", MOMENT, nullable=False),
    # NULL: both sides ended as the row says. Otherwise XA's name of what happened instead, until it is acknowledged.
    Column("outcome", String(32)),
    **ON_MYSQL,
)
"""One row per transactional id, overwritten by each unit of work: it never grows (DESIGN, "The state table")."""

load_position = Table(
    "dualwrite_load_position",
    metadata,
    Column("load_id", String(64), primary_key=True),
    Column("source", String(1024), nullable=False),
    # Rows of the input that are in the database and in Kafka.
    Column("position", BigInteger, nullable=False),
    # Running checksum of those rows, so that a changed input is noticed.
    Column("digest", String(64), nullable=False),
    Column("updated_at", MOMENT, nullable=False),
    **ON_MYSQL,
)
"""How far each load has come; written in the load's own units of work, so that it resumes exactly there."""
