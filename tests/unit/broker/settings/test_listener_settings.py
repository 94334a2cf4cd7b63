"""Settings of single listeners, and passwords, which nothing shows."""

import re
from pathlib import Path

import pytest

from dualwrite.broker.config import BrokerOptions, parse_config
from dualwrite.broker.settings.listener_settings import ListenerKey, listener_key
from dualwrite.broker.settings.setting import ConfigType, Setting, SettingError
from dualwrite.errors import ConfigurationError

TWO = ("listeners=IN://127.0.0.1:1,out.side://127.0.0.1:2", "listener.security.protocol.map=IN:SSL,OUT.SIDE:SASL_SSL")


def options(*pairs: str, allow_anonymous: bool = False) -> BrokerOptions:
    return BrokerOptions(Path("data"), config=parse_config((*TWO, *pairs)), allow_anonymous=allow_anonymous)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("listener.name.in.ssl.client.auth", ("in", "ssl.client.auth")),
        ("listener.name.out.side.ssl.client.auth", ("out.side", "ssl.client.auth")),
        ("listener.name.ssl.ssl.key.password", ("ssl", "ssl.key.password")),
        ("listener.name.in.no.such", None),
        ("listener.name.ssl.client.auth", None),
        ("listener.name.", None),
        ("ssl.client.auth", None),
    ],
)
def test_a_key_of_a_listener_has_its_name_and_a_setting(key: str, parts: tuple[str, str] | None) -> None:
    assert listener_key(key) == (parts and ListenerKey(*parts))


def test_a_listeners_own_value_counts_before_the_brokers_and_that_before_the_default() -> None:
    given = options("ssl.client.auth=requested", "listener.name.in.ssl.client.auth=required", "ssl.key.password=p")
    inside, outside = given.for_listener("IN"), given.for_listener("Out.Side")
    assert inside.text("ssl.client.auth") == "required"
    assert inside.is_own("ssl.client.auth")
    assert outside.text("ssl.client.auth") == "requested"
    assert not outside.is_own("ssl.client.auth")
    assert inside.text("ssl.key.password") == outside.text("ssl.key.password") == "p"
    assert inside.items("ssl.enabled.protocols") == ["TLSv1.2", "TLSv1.3"]
    assert inside.text("ssl.keystore.location") is None


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (
            "listener.name.in.ssl.client.auth=maybe",
            "listener.name.in.ssl.client.auth=maybe: String must be one of: required, requested, none",
        ),
        (
            "listener.name.elsewhere.ssl.client.auth=none",
            "there is no listener elsewhere; listeners has in, out.side (in lower case)",
        ),
        ("listener.name.in.num.partitions=2", "no listener has a value of its own for num.partitions; set it without"),
        ("listener.name.in.ssl.client.aut=none", "expected listener.name.NAME.SETTING; did you mean ssl.client.auth"),
        ("ssl.enabled.protocols=TLSv1.1", "Values must be distinct and of: TLSv1.2, TLSv1.3"),
        ("ssl.enabled.protocols=", "At least one"),
        (
            "ssl.keystore.type=JKS",
            "ssl.keystore.type=JKS: this broker reads PEM; convert JKS with 'keytool -importkeys",
        ),
        ("ssl.truststore.type=PKCS12", "and PKCS12 with 'openssl pkcs12 -in FILE.p12 -out FILE.pem'"),
        ("ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "Python cannot choose among the suites of TLS 1.3"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_reason(pair: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)) as raised:
        options(pair)
    assert "\n" not in str(raised.value)


# --- open listeners


@pytest.mark.parametrize(
    ("protocol", "more", "is_taken"),
    [
        ("PLAINTEXT", (), False),
        ("SSL", (), False),
        ("SSL", ("ssl.client.auth=requested",), False),
        ("SSL", ("ssl.client.auth=required",), True),
        ("SSL", ("ssl.client.auth=required", "listener.name.in.ssl.client.auth=none"), False),
        ("SSL", ("listener.name.in.ssl.client.auth=required",), True),
        ("SASL_PLAINTEXT", (), True),
        ("SASL_SSL", (), True),
    ],
)
@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.1:1", ":1", "[::]:1"])
def test_an_open_listener_authenticates_its_clients_or_is_refused(
    protocol: str, more: tuple[str, ...], is_taken: bool, address: str
) -> None:
    config = parse_config(
        [
            f"listeners=IN://{address}",
            f"listener.security.protocol.map=IN:{protocol}",
            "advertised.listeners=IN://h:1",
            *more,
        ]
    )
    assert BrokerOptions(Path("data"), config=config, allow_anonymous=True).listeners
    if is_taken:
        assert BrokerOptions(Path("data"), config=config).listeners
        return
    with pytest.raises(ConfigurationError, match=f"and {protocol} authenticates no client; .* --allow-anonymous"):
        BrokerOptions(Path("data"), config=config)


UNSECURED = ("sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.allow=true")
SECURED = ("sasl.enabled.mechanisms=OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url=https://issuer.example/keys")


@pytest.mark.parametrize(
    ("protocol", "more", "is_taken"),
    [
        ("SASL_PLAINTEXT", UNSECURED, False),
        ("SASL_SSL", UNSECURED, False),
        ("SASL_SSL", (*UNSECURED, "ssl.client.auth=required"), False),  # with SASL it does not count
        ("SASL_SSL", (*UNSECURED, "listener.name.in.ssl.client.auth=required"), True),
        ("SASL_PLAINTEXT", (*UNSECURED, "listener.name.in.sasl.oauthbearer.unsecured.tokens.allow=false"), True),
        ("SASL_PLAINTEXT", (*UNSECURED, "listener.name.in.sasl.enabled.mechanisms=PLAIN"), True),
        ("SASL_PLAINTEXT", ("sasl.oauthbearer.unsecured.tokens.allow=true",), True),  # OAUTHBEARER is not enabled
        ("SASL_PLAINTEXT", SECURED, True),
    ],
)
def test_tokens_without_a_signature_authenticate_no_client(
    protocol: str, more: tuple[str, ...], is_taken: bool
) -> None:
    listeners = ("listeners=IN://0.0.0.0:1", f"listener.security.protocol.map=IN:{protocol}")
    config = parse_config([*listeners, "advertised.listeners=IN://h:1", *more])
    assert BrokerOptions(Path("data"), config=config, allow_anonymous=True).listeners
    if is_taken:
        assert BrokerOptions(Path("data"), config=config).listeners
        return
    with pytest.raises(ConfigurationError, match=r"any client can be any user; unset sasl.* --allow-anonymous"):
        BrokerOptions(Path("data"), config=config)


# --- passwords

SECRET = "correct-horse"


def test_a_password_is_any_text() -> None:
    setting = Setting(ConfigType.PASSWORD, None, (), "A password.")
    assert setting.read("x", " ä=1 ") == "ä=1"
    assert int(ConfigType.PASSWORD) == 9


def test_no_error_shows_a_password() -> None:
    with pytest.raises(ConfigurationError, match=r"is given twice: '\[hidden\]' and '\[hidden\]'"):
        parse_config([f"ssl.key.password={SECRET}", f"ssl.key.password={SECRET}"])
    with pytest.raises(ConfigurationError, match=r"\[hidden\]"):
        parse_config([f"an.unknown.key={SECRET}", f"an.unknown.key={SECRET}"])
    with pytest.raises(ConfigurationError) as raised:
        options(f"listener.name.nowhere.ssl.key.password={SECRET}")
    assert SECRET not in str(raised.value)


def test_a_refused_password_is_hidden() -> None:
    from dualwrite.broker.settings.setting import Allowed

    setting = Setting(ConfigType.PASSWORD, None, (Allowed("too short", lambda text: len(text) > 50),), "A password.")
    with pytest.raises(SettingError, match=r"^Invalid value \[hidden\] for configuration x: too short$"):
        setting.read("x", SECRET)


def test_options_that_are_printed_show_no_settings() -> None:
    assert SECRET not in repr(options(f"ssl.key.password={SECRET}"))
