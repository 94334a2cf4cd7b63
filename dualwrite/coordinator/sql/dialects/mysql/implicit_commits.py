"""Statements of MariaDB and MySQL that commit by themselves, and their comments."""

import re

from dualwrite.coordinator.rules.transaction_statements import TransactionGrammar

_SKIPPED = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?!M?!).*?\*/|/\*M?!\d*|;)+", re.DOTALL)
"""The server executes comments that begin with ``/*!`` or ``/*M!``."""

_COMMITS = re.compile(
    r"(?:(?:ALTER|CACHE|CHANGE|FLUSH|GRANT|INSTALL|LOCK|OPTIMIZE|RENAME|REPAIR|RESET|REVOKE|STOP|TRUNCATE|UNINSTALL)\b"
    r"|ANALYZE\s+(?:(?:NO_WRITE_TO_BINLOG|LOCAL)\s+)?TABLE\b|CHECK\s+(?:TABLE|VIEW)\b|LOAD\s+INDEX\b"
    r"|CREATE\s+(?!(?:OR\s+REPLACE\s+)?TEMPORARY\b)|DROP\s+(?!TEMPORARY\b|PREPARE\b)|XA\s+(?!RECOVER\b)"
    r"|SET\s+(?:PASSWORD\b|(?:@@)?(?:(?:SESSION|LOCAL)\s*[.\s]\s*)?AUTOCOMMIT\b))",
    re.IGNORECASE,
)
"""Statements that commit implicitly: https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/."""

_TOKENS = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--(?=\s|$)[^\n]*|#[^\n]*|/\*(?!M?!).*?\*/|;""", re.DOTALL
)
"""A semicolon, and the text in which it separates nothing. A backslash escapes in a string."""

GRAMMAR = TransactionGrammar(_SKIPPED, _COMMITS, _TOKENS)
"""The statements that a unit of work refuses."""
