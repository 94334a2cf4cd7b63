"""The settings of SASL: their values, and that each listener may have its own."""

import pytest

from dualwrite.broker.settings.listener_settings import LISTENER_SETTINGS, ListenerValues, listener_key
from dualwrite.broker.settings.sasl_settings import SASL_SETTINGS
from dualwrite.broker.settings.setting import SettingError

URL = "sasl.oauthbearer.jwks.endpoint.url"
MECHANISMS = "sasl.enabled.mechanisms"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        (MECHANISMS, "PLAIN", ["PLAIN"]),
        (MECHANISMS, "SCRAM-SHA-256, OAUTHBEARER", ["SCRAM-SHA-256", "OAUTHBEARER"]),
        (URL, "https://issuer.example.org/keys", "https://issuer.example.org/keys"),
        (URL, "http://127.0.0.1:8080/keys", "http://127.0.0.1:8080/keys"),
        (URL, "file:///etc/keys.json", "file:///etc/keys.json"),
        ("connections.max.reauth.ms", "0", 0),
        ("sasl.oauthbearer.expected.audience", "a,b", ["a", "b"]),
        ("sasl.server.max.receive.size", "1024", 1024),
        ("sasl.oauthbearer.unsecured.tokens.allow", "true", True),
    ],
)
def test_a_value_is_read(name: str, text: str, value: object) -> None:
    assert SASL_SETTINGS[name].read(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (MECHANISMS, ""),
        (MECHANISMS, "GSSAPI"),
        (MECHANISMS, "plain"),
        (MECHANISMS, "PLAIN,PLAIN"),
        (URL, ""),
        (URL, "keys.json"),
        (URL, "/etc/keys.json"),
        (URL, "ftp://issuer/keys"),
        (URL, "https://"),
        (URL, "https://[oops/keys"),
        (URL, "file:"),
        ("connections.max.reauth.ms", "-1"),
        ("sasl.oauthbearer.jwks.endpoint.refresh.ms", "999"),
        ("sasl.oauthbearer.clock.skew.seconds", "-1"),
        ("sasl.oauthbearer.sub.claim.name", ""),
        ("sasl.oauthbearer.expected.issuer", ""),
        ("sasl.server.max.receive.size", "1023"),
        ("sasl.oauthbearer.unsecured.tokens.allow", "yes"),
    ],
)
def test_another_value_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"for configuration {name}: "):
        SASL_SETTINGS[name].read(name, text)


@pytest.mark.parametrize("name", SASL_SETTINGS)
def test_every_default_is_a_value_and_each_listener_may_have_its_own(name: str) -> None:
    setting = SASL_SETTINGS[name]
    assert setting.default is None or setting.value(setting.default) is not None
    assert LISTENER_SETTINGS[name] is setting
    assert listener_key(f"listener.name.internal.{name}") == ("internal", name)


def test_a_listener_without_its_own_value_has_the_brokers() -> None:
    config = {MECHANISMS: "PLAIN", f"listener.name.internal.{MECHANISMS}": "SCRAM-SHA-512"}
    assert ListenerValues("INTERNAL", config).items(MECHANISMS) == ["SCRAM-SHA-512"]
    assert ListenerValues("EXTERNAL", config).items(MECHANISMS) == ["PLAIN"]
    assert ListenerValues("EXTERNAL", {}).items(MECHANISMS) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
