"""Recognizes by its text a statement that ends or begins a transaction, which a unit of work must refuse.

It checks the beginning of the statement. Other ends of a transaction (a second statement in the same text, a
procedure) are noticed afterwards; see dialects/unit_transactions.py.
"""

import re

_SKIPPED = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/|;)+", re.DOTALL)
"""Text that may precede the first word; MySQL executes comments that begin with ``/*!`` or ``/*M!``."""
_SKIPPED_BY_MYSQL = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?!M?!).*?\*/|/\*M?!\d*|;)+", re.DOTALL)

_ENDS = re.compile(
    r"(?:COMMIT|END|ABORT|BEGIN(?!\s+NOT\b)|START|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE,
)
_ENDS_IN_MYSQL = re.compile(
    r"(?:(?:ALTER|CACHE|CHANGE|FLUSH|GRANT|INSTALL|LOCK|OPTIMIZE|RENAME|REPAIR|RESET|REVOKE|STOP|TRUNCATE|UNINSTALL)\b"
    r"|ANALYZE\s+(?:(?:NO_WRITE_TO_BINLOG|LOCAL)\s+)?TABLE\b|CHECK\s+(?:TABLE|VIEW)\b|LOAD\s+INDEX\b"
    r"|CREATE\s+(?!(?:OR\s+REPLACE\s+)?TEMPORARY\b)|DROP\s+(?!TEMPORARY\b|PREPARE\b)|XA\s+(?!RECOVER\b)"
    r"|SET\s+(?:PASSWORD\b|(?:@@)?(?:(?:SESSION|LOCAL)\s*[.\s]\s*)?AUTOCOMMIT\b))",
    re.IGNORECASE,
)
"""Statements that commit implicitly: https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/."""


def ends_transaction(dialect: str, statement: str) -> bool:
    """True if ``statement`` would end the transaction in which it runs, or begin another one.

    :param dialect: SQLAlchemy's name of the database.
    """
    in_mysql = dialect in ("mysql", "mariadb")
    skipped = (_SKIPPED_BY_MYSQL if in_mysql else _SKIPPED).match(statement)
    begin = skipped.end() if skipped else 0
    if _ENDS.match(statement, begin) is not None:
        return True
    return in_mysql and _ENDS_IN_MYSQL.match(statement, begin) is not None
