"""The rules for the values of a topic's or broker's setting: its type, how its text is parsed, and the allowed values.

The parsing rules are those of Kafka's ConfigDef. The broker stores and describes the text of a setting, and parses the
value when it needs it.
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
    PASSWORD = 9


HIDDEN = "[hidden]"
"""What is shown of a password (Kafka: Password.HIDDEN)."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The values that a setting allows, and a sentence about them. ``just_one`` is the text of the only allowed value,
    and the sentence then is the reason."""

    says: str
    holds: Callable[[Any], bool]
    just_one: str = ""


class SettingError(ValueError):
    """A setting does not allow a value. The handler answers INVALID_CONFIG with the message."""


ANYTHING = Allowed("any value", lambda value: True)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a topic or of the broker. Its value must obey ``rules``. Without a ``default`` (None) it has no
    value until it is set."""

    type: ConfigType
    default: str | None
    rules: tuple[Allowed, ...]
    documentation: str

    def value(self, text: str) -> Any:
        """The value of ``text``.

        :raises ValueError: if the setting does not allow it. The message has the reason.
        """
        value = read_value(self.type, text)
        refusal = next((rule.says for rule in self.rules if not rule.holds(value)), None)
        if refusal is not None:
            raise ValueError(refusal)
        return value

    def read(self, name: str, text: str) -> Any:
        """The value of ``text`` for this setting, which is called ``name``.

        :raises SettingError: if the setting does not allow it. The message has Kafka's wording.
        """
        try:
            return self.value(text)
        except ValueError as error:
            raise SettingError(f"Invalid value {self.shown(text)} for configuration {name}: {error}") from None

    def shown(self, text: str) -> str:
        """``text`` as an error message or a log may show it: shortened, and hidden if it is a password."""
        return HIDDEN if self.is_sensitive else text[:80]

    @property
    def is_sensitive(self) -> bool:
        """True if no one may see the value."""
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
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
        lambda items: set(items) <= set(values) and len(set(items)) == len(items),
    )


def only(value: object, reason: str) -> Allowed:
    """Only ``value``. The ``reason`` is a property of this broker."""
    return Allowed(reason, lambda found: bool(found == value), str(value).lower())


_RANGES = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}
_LONGEST_NUMBER = 40  # characters; Python parses very long numbers slowly, or not at all


def read_value(kind: ConfigType, text: str) -> Any:
    """The value of ``text``.

    :raises ValueError: if it is not of that type. The message names the expected type.
    """
    text = text.strip()
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"
    if kind in (ConfigType.STRING, ConfigType.PASSWORD):
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
    """``text``, a valid value of that type, as Kafka writes it."""
    value = read_value(kind, text)
    if kind is ConfigType.BOOLEAN:
        return "true" if value else "false"
    return ",".join(value) if kind is ConfigType.LIST else str(value)
