"""Statements of PostgreSQL that a unit of work refuses, and its strings."""

import re

from dualwrite.coordinator.rules.transaction_statements import TransactionGrammar

_RESETS = re.compile(r"(?:RESET|DISCARD)\s+ALL\b", re.IGNORECASE)
"""RESET ALL resets the setting that marks the unit's transaction, too, and turns its timeouts off."""

_TOKENS = re.compile(
    r"""(?<![\w$])[eE]'(?:[^'\\]|\\.)*'|'[^']*'|"[^"]*"|(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$"""
    r"""|--[^\n]*|/\*.*?\*/|;""",
    re.DOTALL,
)
"""A semicolon, and the text in which it separates nothing: with dollar quotes, and strings in which a backslash
escapes."""

GRAMMAR = TransactionGrammar(more=_RESETS, tokens=_TOKENS)
"""The statements that a unit of work refuses."""
