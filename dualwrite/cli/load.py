"""``dualwrite load``: its options, and the checks that need no more than them and the file.

What needs SQLAlchemy and a Kafka client is in loading.py and imported last, so that a mistake is reported at once.
"""

import argparse
import csv
import sys
from pathlib import Path

from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config
from dualwrite.cli.database import add_database, database
from dualwrite.cli.printing import complain, counted
from dualwrite.cli.producer import add_producer
from dualwrite.cli.progress import ProgressReport
from dualwrite.errors import ConfigurationError, DualWriteError, InputError
from dualwrite.loader.dry_run import dry_run
from dualwrite.loader.format import KINDS, InputFormat, parsed_delimiter, parsed_encoding
from dualwrite.loader.input import check_input
from dualwrite.loader.job import LoadJob

_LONGEST_FIELD = 1 << 20
"""The longest CSV field, to detect an unclosed quote. A broker's default message.max.bytes is smaller."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "file",
        type=_input_path,
        help=".csv, .tsv, .jsonl, .ndjson or .json; alone, as .gz, or the one file in a .zip; - is standard input",
    )
    add_database(parser)
    parser.add_argument("--table", required=True, help="an existing table, as table or schema.table")
    parser.add_argument("--topic", required=True, help="the topic of the records: each row as JSON")
    parser.add_argument("--batch-size", type=int, default=500, metavar="N", help="rows in a unit of work (500)")
    parser.add_argument("--key", metavar="COLUMN", help="the column whose text is the key of the records")
    _add_format(parser)
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="a name that identifies the load in place of the file's path, the same in every run",
    )
    parser.add_argument(
        "--bad-rows", type=Path, metavar="FILE", help="put rows that do not fit into FILE, as JSON lines, and go on"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="read every row and show the bad ones; ask neither database nor Kafka"
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
    """Load the input, and print the result. 1 if there are bad rows.

    :raises DualWriteError: if the load fails. The message is meant for the user.
    """
    job = _job(arguments)
    job.check()
    kafka = cluster_config(arguments)
    csv.field_size_limit(_LONGEST_FIELD)
    if arguments.dry_run:
        return _dry_run(job)
    check_input(job.path, job.form)
    report = ProgressReport(job.source_name if job.path is None else job.path.name, sys.stderr)
    try:
        with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
            from dualwrite.cli.loading import run_load

            return run_load(job, engine, kafka, arguments, report)
    except DualWriteError as error:
        if report.rows and _is_passing(error):
            raise DualWriteError(f"{error}; {report.rows:,} rows are loaded: run it again to go on") from error
        raise


def _is_passing(error: DualWriteError) -> bool:
    """True if another run may succeed without a correction, such as after a database error during the load."""
    from sqlalchemy.exc import SQLAlchemyError

    if not isinstance(error, InputError | ConfigurationError):
        return True
    return isinstance(error.__context__, SQLAlchemyError)  # a ConfigurationError may hide it from the traceback


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=KINDS, help="the format of the input (as the file's name ends)")
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="the encoding of the text (utf-8)")
    parser.add_argument(
        "--delimiter", metavar="CHARACTER", help="the character between fields, or tab (comma for CSV, tab for TSV)"
    )
    parser.add_argument(
        "--null", metavar="TEXT", help="a text that stands for NULL, such as NA (an empty CSV field always does)"
    )


def _input_path(word: str) -> Path | None:
    """The path of the input; None for standard input. ``./-`` is a file."""
    return None if word == "-" else Path(word)


def _job(arguments: argparse.Namespace) -> LoadJob:
    delimiter = None if arguments.delimiter is None else parsed_delimiter(arguments.delimiter)
    return LoadJob(
        path=arguments.file,
        table=arguments.table,
        topic=arguments.topic,
        key=arguments.key,
        batch_size=arguments.batch_size,
        null=arguments.null,
        name=arguments.name,
        form=InputFormat(arguments.format, parsed_encoding(arguments.encoding), delimiter),
        bad_rows=arguments.bad_rows,
    )


def _dry_run(job: LoadJob) -> int:
    """Print what would be loaded, and the first bad rows. 1 if there are bad rows."""
    result = dry_run(job)
    units = result.units(job.batch_size)
    print(
        f"dry run, nothing is written: {counted(result.rows, 'row')} of {job.source_name} would be loaded "
        f"into table {job.table} and topic {job.topic}, in {counted(units, 'batch', 'batches')}"
    )
    print(f"columns: {', '.join(result.columns) or 'none'}{result.hint}")
    print("the database was not asked whether the values fit the table's columns")
    if not result.bad_rows:
        return 0
    print(f"{counted(result.bad_rows, 'bad row')}:")
    for message in result.first_bad:
        print(f"  {message}")
    if result.bad_rows > len(result.first_bad):
        print(f"  and {result.bad_rows - len(result.first_bad):,} more")
    if job.bad_rows is None:
        complain("the load would stop at the first bad row; correct the rows, or add --bad-rows FILE")
    return 1
