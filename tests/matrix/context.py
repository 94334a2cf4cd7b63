"""Where and how a run was made: commit, machine, versions, command."""

import os
import platform
import shlex
import sqlite3
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import sqlalchemy

from dualwrite.version import __version__
from tests.matrix.summary import total
from tests.support.apache_kafka.jars import KAFKA_VERSION
from tests.support.servers.mariadb import find_program
from tests.support.servers.postgresql import children, fields, find_binaries

HOME = Path(__file__).parents[2]


def begun_context(options: Namespace) -> dict[str, str]:
    """What the page says of a run that begins now.

    :param options: of the command line.
    """
    only = f" --only {shlex.join(options.only)}" if options.only else ""
    command = f"python -m tests.matrix --kills {options.kills} --seconds {options.seconds:g} --seed {options.seed}"
    return {
        "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": f"`{command} --processes {options.processes}{only}`",
        "seed": str(options.seed),
        **machine_and_versions(),
    }


def spent(minutes: float, summary: Mapping[str, Any]) -> dict[str, str]:
    """What the page says of a run that has ended.

    :param minutes: that it has taken.
    """
    kills, processor = total(summary)["deaths"], summary["processor_seconds"]
    return {
        "minutes": f"{minutes:.1f}",
        "kills per minute": f"{kills / max(minutes, 0.01):,.0f}",
        "processor time": f"{processor:,.0f} s, {1000 * processor / max(kills, 1):,.0f} ms for each kill, with all "
        "that the run does beside: other faults, recovery, comparisons, brokers, the start of servers",
    }


def machine_and_versions() -> dict[str, str]:
    """The commit, the machine, and the versions of all that takes part."""
    return {
        "commit": commit(),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, {platform.system()} {platform.release()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def processor_seconds() -> float:
    """The processor time of this process and its children; without PostgreSQL, which is no child of its client."""
    own = os.getpid()
    ticks = sum(int(fields(process)[index]) for process in children(own) for index in range(11, 15))
    return round(sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK"), 2)


def commit() -> str:
    """The commit of the sources, with a mark if files of it have changed. A file beside them is no change."""
    described = _said("git", "-C", str(HOME), "rev-parse", "HEAD")
    changed = _said("git", "-C", str(HOME), "status", "--porcelain", "--untracked-files=no")
    return f"{described} with changes" if changed else described


def versions() -> dict[str, str]:
    """By name; without the servers that are not installed."""
    binaries, mariadbd = find_binaries(), find_program("mariadbd")
    found = {
        "dualwrite": __version__,
        "Python": platform.python_version(),
        "SQLAlchemy": sqlalchemy.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
        "SQLite": sqlite3.sqlite_version,
        "Apache Kafka": KAFKA_VERSION,
    }
    if binaries is not None:
        found["PostgreSQL"] = _said(str(binaries / "postgres"), "--version").rpartition(") ")[2].split()[0]
    if mariadbd is not None:
        found["MariaDB"] = _said(str(mariadbd), "--version").partition("Ver ")[2].split()[0]
    return found


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
