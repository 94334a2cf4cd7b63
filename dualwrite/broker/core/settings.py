"""The rules for the values of a topic's or broker's setting: its type, how its text is parsed, and the allowed values.

Kafka: ConfigDef, whose parsing rules these are. The text of a setting is stored and described; its value is parsed from
the text when it is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ConfigType(IntEnum):
    """The types of settings, with the numbers of DescribeConfigs (Kafka: DescribeConfigsResponse.ConfigType)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Allowed:
    """The values that a setting allows, and a sentence that says which, or why only the text ``just_one`` is."""

    says: str
    holds: Callable[[Any], bool]
    just_one: str = ""


class SettingError(ValueError):
    """A value that a setting does not allow: answer INVALID_CONFIG with the message."""


ANYTHING = Allowed("any value", lambda value: True)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, of a topic or of the broker: ``rules`` hold for its value. Without a ``default`` (None) it has no
    value until it is given one."""

    type: ConfigType
    default: str | None
    rules: tuple[Allowed, ...]
    documentation: str

    def value(self, text: str) -> Any:
        """The value that ``text`` stands for.

        :raises ValueError: if the setting does not allow it; the message says why.
        """
        value = read_value(self.type, text)
        refusal = next((rule.says for rule in self.rules if not rule.holds(value)), None)
        if refusal is not None:
            raise ValueError(refusal)
        return value

    def read(self, name: str, text: str) -> Any:
        """The value of ``text`` for this setting, called ``name``.

        :raises SettingError: if the setting does not allow it; the message has Kafka's words.
        """
        try:
            return self.value(text)
        except ValueError as error:
            raise SettingError(f"Invalid value {text[:80]} for configuration {name}: {error}") from None

    @property
    def allowed(self) -> str:
        """The allowed values, for people."""
        rules = (f"{rule.just_one} only: {rule.says}" if rule.just_one else rule.says for rule in self.rules)
        return "; ".join([self.type.name, *(says for says in rules if says != ANYTHING.says)])


def at_least(least: float) -> Allowed:
    """Numbers from ``least`` on."""
    return Allowed(f"Value must be at least {least}", lambda value: value >= least)


def between(least: float, most: float) -> Allowed:
    """Numbers from ``least`` to ``most``."""
    return Allowed(f"Value must be between {least} and {most}", lambda value: least <= value <= most)


def one_of(*values: str) -> Allowed:
    """One of ``values``."""
    return Allowed(f"String must be one of: {', '.join(values)}", lambda value: value in values)


def some_of(*values: str) -> Allowed:
    """A list of ``values``, each of them once at most."""
    return Allowed(
        f"Values must be distinct and of: {', '.join(values)}",
        lambda found: set(found) <= set(values) and len(set(found)) == len(found),
    )


def only(value: object, reason: str) -> Allowed:
    """Only ``value``, for ``reason``, which is a property of this broker."""
    return Allowed(reason, lambda found: bool(found == value), str(value).lower())


_RANGES = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}
_LONGEST_NUMBER = 40  # characters; Python reads very long ones slowly, or not at all


def read_value(kind: ConfigType, text: str) -> Any:
    """The value that ``text`` stands for.

    :raises ValueError: if it is not of that type; the message says what was expected.
    """
    text = text.strip()
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"
    if kind is ConfigType.STRING:
        return text
    if kind is ConfigType.LIST:
        return [part.strip() for part in text.split(",")] if text else []
    return _read_number(kind, text)


def _read_number(kind: ConfigType, text: str) -> float:
    error = ValueError(f"Not a number of type {kind.name}")
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        raise error
    try:
        number = float(text) if kind is ConfigType.DOUBLE else int(text)
    except ValueError:
        raise error from None
    least, most = _RANGES.get(kind, (float("-inf"), float("inf")))
    if not least <= number <= most:  # also false for NaN
        raise error
    return number


def write_value(kind: ConfigType, text: str) -> str:
    """``text``, which stands for a value of that type, as Kafka writes that value."""
    value = read_value(kind, text)
    if kind is ConfigType.BOOLEAN:
        return "true" if value else "false"
    return ",".join(value) if kind is ConfigType.LIST else str(value)
