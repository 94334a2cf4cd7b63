"""Opens an input: a file, plain, gzipped or as the one member of a zip archive, or standard input."""

import gzip
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple, cast

from dualwrite.errors import InputError

STANDARD_INPUT = "standard input"


class InputStream(NamedTuple):
    """The text of an input.

    :param raw: the file on disk, or standard input.
    :param text: the bytes of the text.
    :param name: the file name with the suffix of the text's kind.
    :param text_size: the size of the text in bytes, None if it is unknown.
    :param file_size: the size of the file in bytes, None for standard input.
    """

    raw: IO[bytes]
    text: IO[bytes]
    name: str
    text_size: int | None
    file_size: int | None


def open_input(path: Path | None, stack: ExitStack) -> InputStream:
    """The input at ``path``, or standard input for None. ``stack`` closes what was opened.

    :raises InputError: if the file is missing, unreadable, or no archive with one file; or if there is no standard
        input. The message names the file.
    """
    if path is None:
        if sys.stdin is None:
            raise InputError("there is no standard input to read")
        return InputStream(sys.stdin.buffer, sys.stdin.buffer, STANDARD_INPUT, None, None)
    try:
        raw: IO[bytes] = stack.enter_context(path.open("rb"))
        if not path.is_file():
            raise InputError(f"{path} is not a regular file; read it from standard input, with - in place of its name")
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if path.suffix.lower() == ".gz":
        text = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb")))
        return InputStream(raw, text, path.stem, None, size)
    if path.suffix.lower() == ".zip":
        return _member(path, raw, size, stack)
    return InputStream(raw, raw, path.name, size, size)


def _member(path: Path, raw: IO[bytes], size: int, stack: ExitStack) -> InputStream:
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise InputError(f"{path.name} holds {len(members)} files; it must hold one")
        text = stack.enter_context(archive.open(members[0]))
        return InputStream(raw, text, members[0].filename, members[0].file_size, size)
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None
