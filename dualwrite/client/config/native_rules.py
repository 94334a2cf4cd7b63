"""Rules for the values of settings: each rule parses a value, and says in words what it allows."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from dualwrite.errors import ConfigurationError

FLAGS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""How librdkafka reads a boolean, in any case of letters."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value may be.

    :param says: completes "allowed: …".
    :param read: converts the value for the program; raises ValueError or TypeError for a value that is not allowed.
    :param is_secret: True if the value must not be shown.
    :param kind: precedes ``says`` where the type is not obvious.
    :param is_range: True for numbers in a range, which is librdkafka's.
    """

    says: str
    read: Callable[[Any], Any]
    is_secret: bool = False
    kind: str = ""
    is_range: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """``value`` of the setting ``name``, converted for the program.

        :raises ConfigurationError: if it is not allowed. The message names the setting, and shows no secret.
        """
        try:
            return self.read(value)
        except (TypeError, ValueError, OverflowError):
            told = f"of type {type(value).__name__}" if self.is_secret else shown(value)
            raise ConfigurationError(f"{name} {told}: allowed: {self.kind}{self.says}") from None


def shown(value: Any) -> str:
    """``value`` in a message."""
    try:
        return f"{value!r:.100}"
    except ValueError:  # an integer with more digits than Python writes
        return f"of type {type(value).__name__}"


def integer(lowest: int, highest: int) -> Rule:
    """A whole number from ``lowest`` to ``highest``, both included."""

    def read(value: Any) -> int:
        number = int(value)
        if isinstance(value, bool) or (isinstance(value, float) and value != number):
            raise TypeError(value)
        if not lowest <= number <= highest:
            raise ValueError(value)
        return number

    return Rule(f"{lowest} to {highest}", read, kind="whole numbers, ", is_range=True)


def decimal(lowest: int, highest: int) -> Rule:
    """A number from ``lowest`` to ``highest``, both included."""

    def read(value: Any) -> float:
        number = float(value)
        if isinstance(value, bool):
            raise TypeError(value)
        if not lowest <= number <= highest:
            raise ValueError(value)
        return number

    return Rule(f"{lowest} to {highest}", read, is_range=True)


def choice(*words: str) -> Rule:
    """One of ``words``, in any case of letters; the result has the spelling given here."""
    by_folded = {word.lower(): word for word in words}

    def read(value: Any) -> str:
        if str(value).lower() not in by_folded:
            raise ValueError(value)
        return by_folded[str(value).lower()]

    return Rule(", ".join(words), read)


def only(*words: str, why: str) -> Rule:
    """One of ``words``, which all mean the same. Other values are refused because of ``why``."""
    return Rule(f"{' or '.join(words)} only: {why}", choice(*words).read)


def _flag(value: Any) -> bool:
    if str(value).lower() not in FLAGS:
        raise ValueError(value)
    return FLAGS[str(value).lower()]


def always(wanted: bool, why: str) -> Rule:
    """A flag with only one allowed value."""

    def read(value: Any) -> bool:
        if _flag(value) is not wanted:
            raise ValueError(value)
        return wanted

    return Rule(f"{str(wanted).lower()} only: {why}", read)


def _text(value: Any) -> str:
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _words(value: Any) -> str:
    if not _text(value).strip():
        raise ValueError(value)
    return _text(value)


def _callable(value: Any) -> Any:
    if not callable(value) or iscoroutinefunction(value):
        raise TypeError(value)
    return value


FLAG = Rule("true, false", _flag)
TEXT = Rule("text", _text)
FILE = Rule("a file's name", _text)
NAMES = Rule("HOST:PORT, …", _words)
SECRET = Rule("text", _text, is_secret=True)
CALLABLE = Rule("a function, and no coroutine function", _callable)
ANY = Rule("anything", lambda value: value)
