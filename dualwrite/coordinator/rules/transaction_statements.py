"""Recognizes by its text a statement that ends or begins a transaction, which a unit of work must refuse.

Other ends of a transaction (a procedure, the driver's own methods) are noticed afterwards; see
dialects/unit_transactions.py.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_SKIPPED = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/|;)+", re.DOTALL)
"""Text that may precede the first word. Comments that MySQL executes begin with ``/*!`` or ``/*M!``."""

_ENDS = re.compile(
    r"(?:COMMIT|END|ABORT|BEGIN(?!\s+NOT\b)|START|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE,
)

_HAS_BODY = re.compile(r"(?:CREATE|BEGIN)\b", re.IGNORECASE)
"""Statements whose text may contain others, which end with a semicolon, too: triggers, functions, blocks."""

_TOKENS = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|;", re.DOTALL)
"""A semicolon, and the text in which a semicolon separates nothing. A doubled quotation mark is the end of one string
and the beginning of another."""


class TransactionGrammar(NamedTuple):
    """The statements of a database that end or begin a transaction.

    :param skipped: matches text that may precede a statement's first word.
    :param more: matches statements that do so only there, or that undo the settings of a unit of work.
    :param tokens: matches a semicolon, a string, a quoted name or a comment.
    """

    skipped: re.Pattern[str] = _SKIPPED
    more: re.Pattern[str] | None = None
    tokens: re.Pattern[str] = _TOKENS


STANDARD = TransactionGrammar()
"""The statements that do so everywhere."""


def ends_transaction(grammar: TransactionGrammar, text: str) -> bool:
    """True if a statement in ``text`` would end the transaction in which it runs, or begin another one."""
    return any(
        _ENDS.match(text, begin) is not None or (grammar.more is not None and grammar.more.match(text, begin))
        for begin in _statements(grammar, text)
    )


def _statements(grammar: TransactionGrammar, text: str) -> Iterator[int]:
    """Where the statements in ``text`` begin: the first one, and those behind semicolons up to one with a body."""
    begin = _after_skipped(grammar, text, 0)
    yield begin
    if ";" not in text:
        return
    for token in grammar.tokens.finditer(text, begin):
        if token.group() == ";":
            if _HAS_BODY.match(text, begin):
                return
            begin = _after_skipped(grammar, text, token.end())
            yield begin


def _after_skipped(grammar: TransactionGrammar, text: str, begin: int) -> int:
    skipped = grammar.skipped.match(text, begin)
    return skipped.end() if skipped else begin
