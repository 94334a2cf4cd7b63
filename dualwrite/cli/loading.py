"""The work of ``dualwrite load``: an input into a table and a topic, each batch in both or in neither."""

import argparse
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.cli.cluster import require_cluster
from dualwrite.cli.printing import complain, counted
from dualwrite.cli.progress import ProgressReport
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.dialects.supported import database_at
from dualwrite.loader.job import LoadJob, Progress
from dualwrite.loader.load import load
from dualwrite.loader.position import read_position


def run_load(
    job: LoadJob, engine: Engine, kafka: Mapping[str, Any], arguments: argparse.Namespace, report: ProgressReport
) -> int:
    """Load the input, show the progress in ``report``, and print the result. 1 if there are bad rows.

    :raises DualWriteError: if the load fails. The message is meant for the user.
    :raises KeyboardInterrupt: after Ctrl-C, once a line on stderr has said how many rows are loaded.
    """
    began = time.monotonic()
    try:
        with DualWrite(
            engine,
            kafka,
            application=arguments.application or _application(job, engine.url),
            producer=arguments.producer,
            two_phase=arguments.two_phase,
        ) as dual_write:
            require_cluster(kafka)
            try:
                done = load(job, engine, dual_write, report)
            finally:
                report.close()
    except KeyboardInterrupt:
        complain(_interrupted(job, engine))
        raise
    return _print_result(job, done, time.monotonic() - began)


def _print_result(job: LoadJob, done: Progress, seconds: float) -> int:
    loaded = done.rows - done.earlier_rows
    target = f"table {job.table} and topic {job.topic}"
    if not loaded and done.bad_rows == done.earlier_bad_rows:
        print(f"nothing to do: the {done.rows:,} rows of {job.source_name} are in {target}")
    else:
        resumed = f", after the {done.earlier_rows:,} of an earlier run" if done.earlier_rows else ""
        rows = "row" if loaded == 1 else "rows"
        print(f"loaded {loaded:,} {rows} of {job.source_name} into {target} in {seconds:.1f} s{resumed}")
    if not done.bad_rows:
        return 0
    complain(_bad_rows(job, done))
    return 1


def _bad_rows(job: LoadJob, done: Progress) -> str:
    """The line about the bad rows of this run and of earlier ones."""
    found = done.bad_rows - done.earlier_bad_rows
    here = f"{counted(found, 'bad row')} in {job.bad_rows}, not loaded" if found else ""
    earlier = (
        f"{counted(done.earlier_bad_rows, 'bad row')} of earlier runs, not loaded" if done.earlier_bad_rows else ""
    )
    return "; ".join(part for part in (here, earlier) if part)


def _interrupted(job: LoadJob, engine: Engine) -> str:
    """The line after Ctrl-C. It asks the database, because the interrupt may come right after a commit."""
    again = "the same command goes on" if job.path is not None else "the same command, with the same input, goes on"
    try:
        with engine.connect() as connection:
            position = read_position(connection, job.load_key)
    except SQLAlchemyError:
        return f"interrupted: {again}"
    bad = f", and {counted(position.bad, 'bad row')} put aside" if position.bad else ""
    rows = "row is" if position.loaded == 1 else "rows are"
    return (
        f"interrupted: {position.loaded:,} {rows} in table {job.table} and topic {job.topic}{bad}; {again} from there"
    )


def _application(job: LoadJob, url: URL) -> str:
    """The load's own application name. It depends on the database. Otherwise a load of the same file into another
    database would find this load's open transaction without a decision, and abort it although this database has
    committed."""
    identity = f"{job.load_key.load_id}\0{database_at(url).server_of(url)}"
    return f"load-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
