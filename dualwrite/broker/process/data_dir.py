"""Checks of a data directory: its name, its owner, and the version of its format.

A file with the version of the format is read before any other file. So a release that does not know a later format
changes nothing in the directory. (Kafka: ``version`` in meta.properties.)
"""

import os
import re
import stat
from pathlib import Path

from dualwrite.errors import ConfigurationError

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
"""The modes of what a broker creates: records and users' credentials are for its own user. An existing directory or
file keeps its mode, which its owner has chosen."""
_OTHERS_READ, _OTHERS_ENTER = stat.S_IRGRP | stat.S_IROTH, stat.S_IXGRP | stat.S_IXOTH
_KAFKAS_OWN = "meta.properties"
FORMAT_FILE = "dualwrite-format"
"""Its content is the version of the format, one number and a line feed."""
FORMAT_VERSION = 1
"""The version that this release writes. A directory without the file has version 1. A change of any file that makes
this release's predecessors fail or lose data increases it."""
_HARMLESS = ("lost+found", "broker.log", FORMAT_FILE, f"{FORMAT_FILE}.tmp")
"""Files that a directory may have before its first start: those in the root of a file system, the log of an
EmbeddedBroker, and what a start creates before the journal."""


def parse_data_dir(text: str) -> Path:
    """The data directory that ``text`` names.

    :raises ConfigurationError: if ``text`` is empty, which would mean the current directory.
    """
    if not text:
        raise ConfigurationError("data directory '': name one; the current directory is '.'")
    return Path(text)


def private(path: str, flags: int) -> int:
    """An opener for ``open()``: a file that is created is for this user alone."""
    return os.open(path, flags, PRIVATE_FILE)


def readable_by_others(data_dir: Path, journal: str) -> Path | None:
    """A file of the journal that other users of this machine can read, for example one that was created by an earlier
    release; None if there is none."""
    directory = data_dir / journal
    if not all(each.stat().st_mode & _OTHERS_ENTER for each in (data_dir, directory)):
        return None
    return next((path for path in sorted(directory.iterdir()) if path.stat().st_mode & _OTHERS_READ), None)


def refuse_foreign(data_dir: Path, journal: str) -> None:
    """Refuse a directory that another program uses: the files of both would conflict, and this broker would remove logs
    that it does not know. Hidden files (``.gitkeep``, the broker's lock) do not count.

    :param journal: the name of the directory that a broker creates first.
    :raises ConfigurationError: if ``data_dir`` is Apache Kafka's, or has other files and no journal.
    """
    foreign = data_dir / _KAFKAS_OWN
    if not foreign.exists():
        if (data_dir / journal).is_dir():
            return
        foreign_paths = [
            path for path in data_dir.iterdir() if path.name not in _HARMLESS and not _is_hidden_file(path)
        ]
        if not foreign_paths:
            return
        foreign = min(foreign_paths)
    raise ConfigurationError(f"data directory {data_dir} must be empty or dualwrite's own, but contains {foreign}")


def _is_hidden_file(path: Path) -> bool:
    return path.name.startswith(".") and path.is_file()


def refuse_later_format(data_dir: Path) -> None:
    """Refuse a directory whose format this release does not know. Changes nothing.

    :raises ConfigurationError: if a later release has written it, or the file with the version is damaged.
    """
    path = data_dir / FORMAT_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    if not re.fullmatch(rb"[1-9]\d{0,8}\n", text):
        raise ConfigurationError(
            f"{path}: damaged, not one number and a line feed. Restore it; if no later release has used the directory, "
            f"remove it"
        )
    version = int(text)
    if version > FORMAT_VERSION:
        raise ConfigurationError(
            f"{path}: data directory {data_dir} was written by a later release of dualwrite, in format {version}, and "
            f"this release knows format {FORMAT_VERSION}: start the later release"
        )


def write_format(data_dir: Path) -> None:
    """Store the version of the format, durably, if the directory has none.

    :raises OSError: if the file cannot be written.
    """
    path = data_dir / FORMAT_FILE
    if path.exists():
        return
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "wb", opener=private) as file:
        file.write(b"%d\n" % FORMAT_VERSION)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
