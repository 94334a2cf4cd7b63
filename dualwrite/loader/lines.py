"""The lines of an input as text: counted, digested, and kept until the next row begins."""

import hashlib
import io
import zipfile
import zlib
from typing import IO

from dualwrite.errors import InputError
from dualwrite.loader.format import InputFormat, is_read_by_lines

_UTF_8 = "utf-8"


class LineError(ValueError):
    """A line that no row can hold, such as one in another encoding. The message says why."""


class TextLines:
    """The lines of ``stream`` as text.

    The digest covers the decoded text. So a load that goes on with another encoding is refused if the rows before would
    have been read in another way, and goes on if they would not. The delimiter is a part of the digest, unless it is
    the comma, because it changes every row.

    :param name: the input's name, for messages.
    :param form: the input's format, every part of it known.
    """

    def __init__(self, name: str, stream: IO[bytes], form: InputFormat) -> None:
        self._name = name
        self._encoding = form.encoding if is_read_by_lines(form.encoding) else _UTF_8
        self._wide = None if is_read_by_lines(form.encoding) else form.encoding
        self._stream = stream if self._wide is None else _Recoded(stream, self._wide)
        self.number = 0
        self.size = 0
        self.ended = False
        self.row: list[bytes] = []
        """The lines of the row that is being read."""
        self.digest = hashlib.sha256()
        if form.delimiter not in (None, ","):
            self.digest.update(f"delimiter {form.delimiter}\n".encode())

    def begin_row(self) -> int:
        """Forget the lines of the row before; return the number of the next line, from 1."""
        self.row.clear()
        return self.number + 1

    def __iter__(self) -> "TextLines":
        return self

    def __next__(self) -> str:
        raw = self._next_raw()
        if not raw:
            self.ended = True
            raise StopIteration
        self.number += 1
        self.size += len(raw)
        self.row.append(raw)
        error = None
        try:
            text = raw.decode("utf-8-sig" if self.number == 1 and self._encoding == _UTF_8 else self._encoding)
            digested = raw if self._encoding == _UTF_8 else text.encode(_UTF_8, "surrogatepass")
        except UnicodeDecodeError as undecodable:
            text, digested, error = "", raw, undecodable
        if digested.strip():
            self.digest.update(digested.rstrip(b"\r\n") + b"\n")
        if error is not None:
            shown = "UTF-8" if self._encoding == _UTF_8 else self._encoding
            raise LineError(f"is not {shown} (byte {error.start + 1}); is it in another --encoding?")
        if "\0" in text:
            raise LineError("contains a NUL byte; this is not a text file")
        return text

    def _next_raw(self) -> bytes:
        try:
            return self._stream.readline()
        # zipfile raises RuntimeError for an encrypted member, NotImplementedError for an unknown compression
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
            raise InputError(f"{self._name} cannot be read beyond line {self.number}: {error}") from None
        except UnicodeError:  # also without the byte order mark that the encoding must have
            raise InputError(f"{self._name} is not {self._wide} beyond line {self.number}") from None


class _Recoded:
    """The lines, in UTF-8, of a stream in an encoding whose newlines are not one byte."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, newline="\n")

    def readline(self) -> bytes:
        return self._text.readline().encode()
