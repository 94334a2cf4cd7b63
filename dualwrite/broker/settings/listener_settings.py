"""The settings that each listener may have for itself: ``listener.name.<listener's name in lower case>.<setting>``.

Without such an entry a listener has the broker's value. Sources: Kafka's KafkaConfig.valuesWithPrefixOverride,
ListenerName.configPrefix.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dualwrite.broker.settings.sasl_settings import ALLOW_UNSECURED, ENABLED_MECHANISMS, OAUTHBEARER, SASL_SETTINGS
from dualwrite.broker.settings.setting import Setting
from dualwrite.broker.settings.tls_settings import NONE, TLS_SETTINGS

LISTENER_PREFIX = "listener.name."

LISTENER_SETTINGS: Mapping[str, Setting] = {**SASL_SETTINGS, **TLS_SETTINGS}
"""The settings by their names without the prefix."""


class ListenerKey(NamedTuple):
    """A key of one listener: the listener's name in lower case, and the setting."""

    listener: str
    setting: str


def listener_key(key: str) -> ListenerKey | None:
    """The parts of ``key``; None if it is no known setting of a listener."""
    if not key.startswith(LISTENER_PREFIX):
        return None
    name, setting = "", key.removeprefix(LISTENER_PREFIX)
    while "." in setting:  # the name of a listener may contain dots
        part, _, setting = setting.partition(".")
        name = f"{name}.{part}" if name else part
        if name and setting in LISTENER_SETTINGS:
            return ListenerKey(name, setting)
    return None


class ListenerValues:
    """The values of LISTENER_SETTINGS for one listener.

    :param listener: the listener's name, in any case.
    :param config: the broker's settings, as text. They must be valid.
    """

    def __init__(self, listener: str, config: Mapping[str, str]) -> None:
        self._prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        self._config = config

    def is_own(self, key: str) -> bool:
        """True if the setting was set for this listener alone."""
        return self._prefix + key in self._config

    @property
    def accepts_anyone(self) -> bool:
        """True if a mechanism of SASL lets every client be every user: OAUTHBEARER with tokens without a signature."""
        return OAUTHBEARER in self.items(ENABLED_MECHANISMS) and self.value(ALLOW_UNSECURED) is True

    def client_auth(self, is_sasl: bool) -> str:
        """Whether clients present a certificate. With SASL only the listener's own value counts (KIP-684)."""
        key = "ssl.client.auth"
        return self.text(key) or NONE if not is_sasl or self.is_own(key) else NONE

    def value(self, key: str) -> Any:
        """The value of a setting; None if it is not set and has no default."""
        setting = LISTENER_SETTINGS[key]
        text = self._config.get(self._prefix + key, self._config.get(key, setting.default))
        return None if text is None else setting.value(text)

    def text(self, key: str) -> str | None:
        """The value of a setting that is a text or a password; None if it is not set."""
        value = self.value(key)
        assert value is None or isinstance(value, str)
        return value

    def number(self, key: str) -> int:
        """The value of a numeric setting that has a default."""
        value = self.value(key)
        assert isinstance(value, int)
        return value

    def items(self, key: str) -> list[str]:
        """The value of a setting that is a list; empty if it is not set."""
        value = self.value(key) or []
        assert isinstance(value, list)
        return value
