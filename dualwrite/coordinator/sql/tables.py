"""The tables that this library keeps in the user's database. alembic reads them from ``metadata``.

They are made by ``dualwrite db upgrade --db URL``. The metadata is of its own, so that the user's never sees them.
"""

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

from dualwrite.coordinator.sql.column_types import BYTES, MOMENT, NUMBER, OPTIONS
from dualwrite.coordinator.sql.dialects.interface.tables import STATE_TABLE

VERSION_TABLE = "dualwrite_alembic_version"
"""alembic's own table under a name of ours: users run alembic in the same database."""

metadata = MetaData()

OPEN_RUN = "open"
"""The ``state`` of a row of dualwrite_spark_run that was not decided yet."""

UNRECOVERED = "unrecovered"
"""What ``outcome`` says of a row that is new in its cluster and not recovered since: it was inserted, or taken after it
was given back in another cluster. No unit of work of this row has begun a transaction that recovery finds open there.
Nor is the transaction of the row's state there, even if that cluster's log has one that looks the same."""

kafka_transaction_state = Table(
    STATE_TABLE,
    metadata,
    Column("transactional_id", String(255), primary_key=True),
    # KIP-939's producerId:epoch. Empty: no unit of work was ever committed under this transactional id.
    Column("prepared_txn_state", String(255), nullable=False, server_default=""),
    # topic:partition:offset of the transaction's first record; NULL where every transaction bumps the epoch.
    Column("anchor", String(255)),
    # Raised by each process that takes the transactional id over: a process with a lower token is fenced.
    Column("fencing_token", BigInteger, nullable=False),
    Column("owner", String(255), nullable=False),
    # NULL: the lease does not run out by itself, it is taken over.
    Column("lease_expires_at", MOMENT),
    Column("updated_at", MOMENT, nullable=False),
    # UNRECOVERED from the row's insertion, or its first lease in another cluster, until its recovery there; NULL from
    # then on. Each unit of work writes NULL to it. Outcomes outlive the state, so they have a table.
    Column("outcome", String(32)),
    # What recovery knows the transaction by if a topic is gone, and finds its end by (evidence.py). Of no use
    # if it is another state's: the former release leaves it as it is.
    Column("first_record", String(255)),
    # Drawn anew with each renewal of the lease, so that two copies of one process notice each other. NULL: leased by an
    # earlier release.
    Column("lease_version", BigInteger),
    # Kafka's cluster id: where the transaction of the state is, unless the row is UNRECOVERED. NULL: not known yet.
    Column("cluster_id", String(255)),
    # The database that has written the row. Another one here is that of a copy. NULL: not known yet.
    Column("database_id", String(255)),
    **OPTIONS,
)
"""One row per transactional id, overwritten by each unit of work: the table never grows (DESIGN, "The state table")."""

dualwrite_database = Table(
    "dualwrite_database",
    metadata,
    Column("database_id", String(255), primary_key=True),
    # Follows the application's name in the transactional ids of a copy, which leaves the original's ids alone.
    Column("id_suffix", String(32), nullable=False),
    Column("declared_at", MOMENT, nullable=False),
    **OPTIONS,
)
"""The databases that an operator has declared to be copies (`dualwrite db copied`). Empty in all others."""

kafka_transaction_outcome = Table(
    "kafka_transaction_outcome",
    metadata,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("transactional_id", String(255), nullable=False),
    # The decision's, as in the state table, whose row forgets it: producerId:epoch, and topic:partition:offset.
    Column("prepared_txn_state", String(255), nullable=False),
    Column("first_record", String(255)),
    # XA's name of what happened instead of the decision.
    Column("outcome", String(32), nullable=False),
    # For the operator, in one line.
    Column("detail", Text, nullable=False),
    Column("found_at", MOMENT, nullable=False),
    # NULL: not acknowledged yet.
    Column("acknowledged_at", MOMENT),
    Column("acknowledged_by", String(255)),
    **OPTIONS,
)
"""Units of work that ended differently on the two sides. Rows are added when such units are found, and changed only by
an operator's acknowledgement."""

kafka_transaction_record = Table(
    "kafka_transaction_record",
    metadata,
    Column("transactional_id", String(255), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Whose records these are, as in the table of outcomes: a unit of work that is not to be replayed leaves them here.
    Column("prepared_txn_state", String(255), nullable=False),
    Column("first_record", String(255)),
    Column("topic", String(249), nullable=False),
    # Where it went the first time; -1 if that is not known.
    Column("partition", Integer, nullable=False),
    Column("record_key", BYTES),
    Column("record_value", BYTES),
    Column("headers", BYTES),
    # Milliseconds since the epoch.
    Column("record_timestamp", BigInteger, nullable=False),
    **OPTIONS,
)
"""The records of the last unit of work of a transactional id, in order; the next one replaces them (replay.py)."""

kafka_consumer_offset = Table(
    "kafka_consumer_offset",
    metadata,
    Column("group_id", String(255), primary_key=True),
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    # Of the next record to be read, as Kafka commits it.
    Column("next_offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer),
    Column("updated_at", MOMENT, nullable=False),
    # Kafka's cluster id: whose records these offsets count. NULL: not known yet.
    Column("cluster_id", String(255)),
    **OPTIONS,
)
"""The offsets of consumer groups, written in the units of work that used their records."""

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
    **OPTIONS,
)
"""The progress of each load; written in the load's own units of work, so that it resumes exactly there."""

spark_progress = Table(
    "dualwrite_spark_progress",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    # -1 for the batch itself: it says in how many partitions it is written, and is there before they are.
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("partitions", Integer, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    # Of the rows, in any order, so that other rows under the same name are noticed.
    Column("digest", String(64), nullable=False),
    Column("updated_at", MOMENT, nullable=False),
    # The batch's target, in its own row; see dualwrite_spark_batch.
    Column("table_name", String(511)),
    Column("table_id", String(255)),
    Column("topic", String(255)),
    # The highest number among the job's batches that were forgotten; in the job's own row, whose batch is -1.
    Column("forgotten_to", BigInteger),
    **OPTIONS,
)
"""Which partitions of a Spark job's batches are written, each in the unit of work that wrote it."""

spark_run = Table(
    "dualwrite_spark_run",
    metadata,
    Column("job", String(255), primary_key=True),
    # Drawn for each run: a driver with another one is fenced.
    Column("run_id", BigInteger, nullable=False),
    # open, committed or aborted.
    Column("state", String(16), nullable=False),
    # Of the rows that the run's tasks have written so far; with its schema, if it is in another than the rest.
    Column("staging_schema", String(255)),
    Column("staging_table", String(255), nullable=False),
    # From then on any process may abort what is prepared.
    Column("expires_at", MOMENT, nullable=False),
    Column("updated_at", MOMENT, nullable=False),
    # The highest number among the job's batches that were forgotten.
    Column("forgotten_to", BigInteger),
    **OPTIONS,
)
"""The last run of each Spark job that writes whole batches: a new one ends it, so that only one can commit."""

spark_batch = Table(
    "dualwrite_spark_batch",
    metadata,
    Column("job", String(255), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    # Which run has committed it.
    Column("run_id", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("committed_at", MOMENT, nullable=False),
    # Of all rows, in any order; NULL if the batch is not to be compared.
    Column("digest", String(64)),
    # The target table: its schema and name, and its number in that database, where the database numbers its tables.
    Column("table_name", String(511)),
    Column("table_id", String(255)),
    # NULL if each row names its topic.
    Column("topic", String(255)),
    **OPTIONS,
)
"""The batches that are committed, written in the decision's own transaction: run again, they have no second effect."""
