"""``dualwrite load``: a file into a table and a topic, each batch in both or in neither, resuming after any crash."""

import argparse
import csv
import hashlib
import sys
import time
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config, require_cluster
from dualwrite.cli.database import add_database, database
from dualwrite.cli.producer import add_producer
from dualwrite.cli.progress import ProgressReport
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.dialects.supported import database_at
from dualwrite.errors import ConfigurationError, DualWriteError, InputError
from dualwrite.loader.job import LoadJob
from dualwrite.loader.load import load

_LONGEST_FIELD = 1 << 20
"""The longest CSV field, to detect an unclosed quote. A broker's default message.max.bytes is smaller."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "file", type=Path, help=".csv, .jsonl, .ndjson or .json; alone, as .gz, or the one file in a .zip"
    )
    add_database(parser)
    parser.add_argument("--table", required=True, help="an existing table, as table or schema.table")
    parser.add_argument("--topic", required=True, help="the topic of the records: each row as JSON")
    parser.add_argument("--batch-size", type=int, default=500, metavar="N", help="rows in a unit of work (500)")
    parser.add_argument("--key", metavar="COLUMN", help="the column whose text is the key of the records")
    parser.add_argument(
        "--null", metavar="TEXT", help="a text that stands for NULL, such as NA (an empty CSV field always does)"
    )
    add_producer(parser)
    add_two_phase(parser)
    add_cluster(parser)
    parser.add_argument(
        "--application",
        metavar="NAME",
        help="the application's name; the same in every run of the load (load-<digest of the load and its database>)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Load the file, and print the result.

    :raises DualWriteError: if the load fails. The message is meant for the user.
    """
    job = LoadJob(
        path=arguments.file,
        table=arguments.table,
        topic=arguments.topic,
        key=arguments.key,
        batch_size=arguments.batch_size,
        null=arguments.null,
    )
    kafka = cluster_config(arguments)
    csv.field_size_limit(_LONGEST_FIELD)
    began = time.monotonic()
    report = ProgressReport(job.path.name, sys.stderr)
    try:
        with (
            database(arguments.db, must_exist=True, schema=arguments.schema) as engine,
            DualWrite(
                engine,
                kafka,
                application=arguments.application or _application(job, engine.url),
                producer=arguments.producer,
                two_phase=arguments.two_phase,
            ) as dual_write,
        ):
            require_cluster(kafka)
            try:
                done = load(job, engine, dual_write, report)
            finally:
                report.close()
    except DualWriteError as error:
        if report.rows and _is_passing(error):
            raise DualWriteError(f"{error}; {report.rows:,} rows are loaded: run it again to go on") from error
        raise
    loaded = done.rows - done.earlier_rows
    if not loaded:
        print(f"nothing to do: the {done.rows:,} rows of {job.path} are in table {job.table} and topic {job.topic}")
        return 0
    resumed = f", after the {done.earlier_rows:,} of an earlier run" if done.earlier_rows else ""
    rows = "row" if loaded == 1 else "rows"
    print(
        f"loaded {loaded:,} {rows} of {job.path} into table {job.table} and topic {job.topic} "
        f"in {time.monotonic() - began:.1f} s{resumed}"
    )
    return 0


def _is_passing(error: DualWriteError) -> bool:
    """True if another run may succeed without a correction, such as after a database error during the load."""
    return not isinstance(error, InputError | ConfigurationError) or isinstance(error.__cause__, SQLAlchemyError)


def _application(job: LoadJob, url: URL) -> str:
    """The load's own application name. It depends on the database. Otherwise a load of the same file into another
    database would find this load's open transaction without a decision, and abort it although this database has
    committed."""
    identity = f"{job.load_key.load_id}\0{database_at(url).server_of(url)}"
    return f"load-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
