"""Recognizes by its text a statement that ends or begins a transaction, which a unit of work must refuse.

It checks the beginning of the statement. Other ends of a transaction (a second statement in the same text, a
procedure) are noticed afterwards; see dialects/unit_transactions.py.
"""

import re
from typing import NamedTuple

_SKIPPED = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/|;)+", re.DOTALL)
"""Text that may precede the first word. Comments that MySQL executes begin with ``/*!`` or ``/*M!``."""

_ENDS = re.compile(
    r"(?:COMMIT|END|ABORT|BEGIN(?!\s+NOT\b)|START|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE,
)


class TransactionGrammar(NamedTuple):
    """The statements of a database that end or begin a transaction.

    :param skipped: matches text that may precede a statement's first word.
    :param more: matches statements that do so only there.
    """

    skipped: re.Pattern[str]
    more: re.Pattern[str] | None = None


STANDARD = TransactionGrammar(_SKIPPED)
"""The statements that do so everywhere."""


def ends_transaction(grammar: TransactionGrammar, statement: str) -> bool:
    """True if ``statement`` would end the transaction in which it runs, or begin another one."""
    skipped = grammar.skipped.match(statement)
    begin = skipped.end() if skipped else 0
    if _ENDS.match(statement, begin) is not None:
        return True
    return grammar.more is not None and grammar.more.match(statement, begin) is not None
