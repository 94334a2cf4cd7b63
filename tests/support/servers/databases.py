"""The matrix of databases: each that is supported, under the name of its fixture ``NAME_url`` and, for a server, of its
marker."""

from pathlib import Path
from typing import Any

import pytest

from dualwrite.coordinator.sql.dialects.supported import SUPPORTED

_NAMES = {database: name for name, database in SUPPORTED.items()}
FILES = [name for database, name in _NAMES.items() if database.is_file]
"""Databases that need no server."""
SERVERS: list[Any] = [
    pytest.param(name, marks=getattr(pytest.mark, name)) for database, name in _NAMES.items() if not database.is_file
]
EVERY: list[Any] = [*FILES, *SERVERS]


def url_of(request: pytest.FixtureRequest, directory: Path) -> str:
    """The URL of a new database of the kind that a fixture with ``params=EVERY`` is asked for."""
    if request.param in FILES:
        return f"{request.param}:///{directory / 'app.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))
