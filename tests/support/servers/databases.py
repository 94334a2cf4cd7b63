"""The matrix of databases: each that is supported, under the name of its fixture ``NAME_url`` and, for a server, of its
marker."""

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
