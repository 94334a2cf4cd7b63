r"""The syntax of Java's ``.properties`` files, such as Kafka's ``server.properties``.

A line is ``key=value``, ``key: value`` or ``key value``. Lines that begin with ``#`` or ``!`` are comments. A line that
ends with a backslash continues in the next one. ``\t``, ``\n``, ``\r``, ``\f`` and ``\uXXXX`` are escapes; before every
other character a backslash has no meaning. Source: java.util.Properties.load.
"""

import re
from collections.abc import Iterator, Mapping

_BLANK = " \t\f"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_TO_ESCAPE = re.compile(r"[\\=:#!\s]")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


class PropertiesError(ValueError):
    """The text is not of this syntax, or a key occurs twice. The message names the line, and never a value."""


def parse_properties(text: str) -> dict[str, str]:
    """The properties in ``text``.

    Java lets the last of several values of a key win. Here they are an error, because one of them is a mistake.

    :raises PropertiesError: if a key occurs twice, or an escape is malformed.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        assert match is not None, "every line has a key, which may be empty"
        key, value = _unescaped(match[1], number), _unescaped(match[2], number)
        if key in properties:
            raise PropertiesError(f"line {number}: {key} is given twice")
        properties[key] = value
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """A text from which :func:`parse_properties` reads ``properties``."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are no comments and not blank, with the continued ones joined, and each one's number."""
    begun, first = "", 0
    for number, natural in enumerate(_LINE_ENDS.split(text), 1):
        line = natural.lstrip(_BLANK)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        if begun or line:
            yield first, begun + line
        begun, first = "", 0
    if begun:
        yield first, begun


def _unescaped(text: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise PropertiesError(f"line {number}: expected four hexadecimal digits after \\u")
        return _CONTROLS.get(match[2], match[2])

    return _ESCAPE.sub(replace, text)


def _escaped(text: str) -> str:
    controls = {character: f"\\{letter}" for letter, character in _CONTROLS.items()}
    return _TO_ESCAPE.sub(lambda match: controls.get(match[0]) or _after_backslash(match[0]), text)


def _after_backslash(character: str) -> str:
    """A character with an escape that is read again as it was."""
    return f"\\{character}" if character.isascii() and character.isprintable() else f"\\u{ord(character):04x}"
