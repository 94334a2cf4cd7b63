"""The kinds of files that a broker writes into its data directory; a file of an unknown kind is an error."""

import re
from pathlib import Path

from dualwrite.broker.core.cluster import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE

SEGMENT = "`.log` of a topic"
JOURNALS = {name: f"`.log` of `{name}`" for name in (CLUSTER_METADATA, TRANSACTION_STATE, CONSUMER_OFFSETS)}
FORMAT = "`dualwrite-format`"
LOCK = "`.lock`"
LEFT_NOTE = "`.tmp`: an unfinished file"
LEFT_CLEANED = "`.cleaned`: an unfinished replacement"
LEFT_SWAP = "`.swap`: a finished replacement"

_STEM = r"\d{20}"
_FILES = {
    rf"{_STEM}\.log": SEGMENT,
    rf"{_STEM}\.index": "`.index`",
    rf"{_STEM}\.timeindex": "`.timeindex`",
    rf"{_STEM}\.txnindex": "`.txnindex`",
    rf"{_STEM}\.checksums": "`.checksums`",
    rf"{_STEM}\.snapshot": "`.snapshot`",
    "recovery-point": "`recovery-point`",
    "log-start-offset": "`log-start-offset`",
    "cleaner-offset": "`cleaner-offset`",
    r".*\.tmp": LEFT_NOTE,
    rf"{_STEM}(\.[a-z]+)?\.cleaned": LEFT_CLEANED,
    rf"{_STEM}\.{_STEM}\.swap": LEFT_SWAP,
    "dualwrite-format": FORMAT,
    r"\.lock": LOCK,
}

KINDS = (*JOURNALS.values(), *_FILES.values())
"""Every kind, in the order of the table."""


class UnknownKindError(AssertionError):
    """The broker has written a file of a kind that the table of damage does not have."""


def kind_of(path: Path) -> str:
    """The kind of the file at ``path``.

    :raises UnknownKindError: if no kind has such a name.
    """
    for pattern, kind in _FILES.items():
        if re.fullmatch(pattern, path.name):
            journal = path.parent.name.rpartition("-")[0]
            return JOURNALS.get(journal, kind) if kind == SEGMENT else kind
    raise UnknownKindError(f"{path} is a file of a kind that tests/damage/kinds.py does not have")


def has_batches(path: Path) -> bool:
    """True if the file at ``path`` consists of record batches."""
    return path.suffix in (".log", ".swap") or re.fullmatch(rf"{_STEM}\.cleaned", path.name) is not None
