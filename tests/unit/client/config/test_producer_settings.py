"""The native producer's configuration: librdkafka's names and ranges, and one clear line for every error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.client.config.native_keys import ALIASES, JAVAS, KEYS, LARGEST_INT, Use
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings, SocketSettings
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError
from dualwrite.records.compression import Codec
from tests.support.client import librdkafka_properties as client_librdkafka
from tests.support.strategies import attempt

LEAST = {"bootstrap.servers": "b:1", "transactional.id": "t"}

OURS = {
    # Settings that librdkafka lacks: KIP-939's, and confluent-kafka's.
    *("transaction.two.phase.commit.enable", "oauth_cb", "on_delivery", "on_commit", "logger", "default.topic.config"),
    # Not in its table, as nobody but a binding sets them.
    *("client.software.name", "client.software.version"),
    # Known to it, and in none of its lists.
    *("enable.sparse.connections", "enable_sasl_queue", "metadata.request.timeout.ms", "test.mock.num.brokers"),
    *("test.mock.broker.rtt", "ut_handle_ProduceResponse"),
}
OTHER_DEFAULTS = {
    *("client.id", "linger.ms", "delivery.timeout.ms", "socket.timeout.ms", "socket.connection.setup.timeout.ms"),
    *("reconnect.backoff.max.ms", "sasl.mechanism", "max.in.flight.requests.per.connection", "enable.idempotence"),
    *("acks", "allow.auto.create.topics"),
}
"""Defaults that are not in librdkafka's table: ours, or those that it has for a transactional producer."""
OTHER_RANGES = {"max.in.flight.requests.per.connection", "retries", "delivery.timeout.ms"}
"""Narrower: idempotence needs the first two, and no record may hold locks for ever."""


def made(**overrides: Any) -> ProducerSettings:
    return ProducerSettings.of(
        LEAST | {name.replace("__", "-").replace("_", "."): each for name, each in overrides.items()}
    )


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        ProducerSettings.of(LEAST | config)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_absent_setting_has_the_documented_default() -> None:
    config = ProducerSettings.of(LEAST)
    assert config.client.bootstrap == (Endpoint("b", 1),)
    assert (config.client.client_id, config.client.tls, config.client.sasl) == ("dualwrite", None, None)
    assert (config.client.connect_timeout, config.client.request_timeout) == (10, 30)
    assert config.client.socket == SocketSettings()
    assert (config.transactional_id, config.two_phase_commit, config.transaction_timeout_ms) == ("t", True, LARGEST_INT)
    assert (config.delivery_timeout, config.ack_timeout_ms, config.max_in_flight) == (30, 30_000, 5)
    assert (config.retries, config.retry_backoff, config.retry_backoff_max) == (LARGEST_INT, 0.1, 1)
    assert (config.reconnect_backoff, config.reconnect_backoff_max) == (0.1, 1)
    assert (config.max_message_bytes, config.batch_size, config.batch_records) == (1_000_000, 1_000_000, 10_000)
    assert (config.linger, config.buffer_bytes, config.buffer_records) == (None, 2**30, 100_000)
    assert (config.codec, config.compression_level) == (Codec.NONE, None)
    assert (config.partitioner, config.is_sticky) == ("consistent_random", True)
    assert (config.metadata_max_age, config.topic_propagation, config.max_idle) == (300, 30, None)
    assert config.allow_auto_create_topics
    assert config.on_delivery is None


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"metadata.broker.list": "b:1"}, "transactional_id", "t"),
        ({"transaction.two.phase.commit.enable": "false"}, "transaction_timeout_ms", 60_000),
        (
            {"transaction.two.phase.commit.enable": 0, "transaction.timeout.ms": 90_000},
            "transaction_timeout_ms",
            90_000,
        ),
        ({"transaction.two.phase.commit.enable": False, "transaction.timeout.ms": 5_000}, "delivery_timeout", 5),
        ({"delivery.timeout.ms": "1500"}, "delivery_timeout", 1.5),
        ({"message.timeout.ms": 1}, "delivery_timeout", 0.001),
        ({"request.timeout.ms": 7}, "ack_timeout_ms", 7),
        ({"max.in.flight": 1}, "max_in_flight", 1),
        ({"message.send.max.retries": 3}, "retries", 3),
        ({"retry.backoff.ms": 50}, "retry_backoff", 0.05),
        ({"retry.backoff.ms": 5000}, "retry_backoff_max", 5),
        ({"retry.backoff.max.ms": 20}, "retry_backoff", 0.02),
        ({"reconnect.backoff.ms": 0}, "reconnect_backoff", 0),
        ({"reconnect.backoff.max.ms": 9000}, "reconnect_backoff_max", 9),
        ({"max.request.size": 2_000_000}, "max_message_bytes", 2_000_000),
        ({"message.max.bytes": 5000}, "batch_size", 5000),
        ({"batch.size": 1}, "batch_size", 1),
        ({"batch.num.messages": 7}, "batch_records", 7),
        ({"queue.buffering.max.ms": "0.5"}, "linger", 0.0005),
        ({"linger.ms": 0.5}, "linger", 0.0005),
        ({"queue.buffering.max.kbytes": 2}, "buffer_bytes", 2048),
        ({"queue.buffering.max.messages": 0}, "buffer_records", LARGEST_INT),
        ({"compression.type": "LZ4"}, "codec", Codec.LZ4),
        ({"compression.codec": "inherit"}, "codec", Codec.NONE),
        ({"compression.type": "gzip", "compression.level": 9}, "compression_level", 9),
        ({"compression.type": "zstd", "compression.level": -1}, "compression_level", None),
        ({"partitioner": "murmur2_random"}, "partitioner", "murmur2_random"),
        ({"partitioner": "random"}, "is_sticky", False),
        ({"sticky.partitioning.linger.ms": 0}, "is_sticky", False),
        ({"metadata.max.age.ms": 1000}, "metadata_max_age", 1),
        ({"topic.metadata.refresh.interval.ms": -1}, "metadata_max_age", None),
        ({"topic.metadata.propagation.max.ms": 0}, "topic_propagation", 0),
        ({"connections.max.idle.ms": 60_000}, "max_idle", 60),
        ({"allow.auto.create.topics": "False"}, "allow_auto_create_topics", False),
        ({"on_delivery": print}, "on_delivery", print),
        ({"dr_cb": print}, "on_delivery", print),
        ({"acks": -1, "request.required.acks": "-1"}, "max_in_flight", 5),
        ({"linger.ms": None}, "linger", None),
    ],
)
def test_a_setting_is_taken(config: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(ProducerSettings.of(LEAST | config), field) == value


def test_settings_of_the_connection_are_taken(tmp_path: Path) -> None:
    config = made(
        client_id="c",
        security_protocol="sasl_ssl",
        sasl_mechanisms="scram-sha-512",
        sasl_username="u",
        sasl_password="p",
        ssl_ca_location=tmp_path,
        enable_ssl_certificate_verification="f",
        socket_keepalive_enable="1",
        socket_nagle_disable=False,
        socket_send_buffer_bytes=4096,
        socket_receive_buffer_bytes="8192",
        socket_timeout_ms=10,
        socket_connection_setup_timeout_ms=1000,
    ).client
    assert config.sasl is not None
    assert (config.sasl.mechanism, config.sasl.username, config.sasl.password) == ("SCRAM-SHA-512", "u", "p")
    assert config.tls is not None
    assert (config.tls.ca_location, config.tls.verify_certificate) == (str(tmp_path), False)
    assert config.socket == SocketSettings(True, False, 4096, 8192)
    assert (config.client_id, config.request_timeout, config.connect_timeout) == ("c", 0.01, 1)


def test_tokens_are_taken_from_the_callback_with_its_configuration() -> None:
    config = ProducerSettings.of(
        LEAST
        | {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
        | {"oauth_cb": lambda config: (config, 9.0), "sasl.oauthbearer.config": "scope"}
    )
    assert config.client.sasl is not None
    assert config.client.sasl.tokens is not None
    assert config.client.sasl.tokens.token(0).value == "scope"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bootstrap.servers": None}, "bootstrap.servers is not set: name at least one broker as HOST:PORT"),
        ({"bootstrap.servers": " "}, "bootstrap.servers ' ': allowed: HOST:PORT, …"),
        ({"bootstrap.servers": "b:x"}, "bootstrap.servers: 'b:x' is not HOST:PORT"),
        ({"bootstrap.servers": "b:000009092"}, "bootstrap.servers: 'b:000009092' is not HOST:PORT"),
        ({"bootstrap.servers": "b:" + "9" * 5000}, "bootstrap.servers: 'b:999"),
        ({"transactional.id": None}, "transactional.id is not set"),
        ({"transactional.id": ""}, "transactional.id is not set"),
        ({"linger.ms": "soon"}, "linger.ms 'soon': allowed: 0 to 900000"),
        ({"linger.ms": "nan"}, "linger.ms 'nan': allowed: 0 to 900000"),
        ({"queue.buffering.max.ms": -1}, "queue.buffering.max.ms -1: allowed: 0 to 900000"),
        ({"batch.size": 1.5}, "batch.size 1.5: allowed: whole numbers, 1 to 2147483647"),
        ({"batch.size": float("inf")}, "batch.size inf: allowed: whole numbers, 1 to 2147483647"),
        ({"batch.size": True}, "batch.size True: allowed: whole numbers, 1 to 2147483647"),
        ({"compression.level": 3.5}, "compression.level 3.5: allowed: whole numbers, -1 to 12"),
        ({"linger.ms": True}, "linger.ms True: allowed: 0 to 900000"),
        ({"acks": 1}, "acks 1: allowed: all or -1 only: a transaction is in every in-sync replica"),
        ({"enable.idempotence": "no"}, "enable.idempotence 'no': allowed: true only: transactions need it"),
        ({"max.in.flight": 6}, "max.in.flight 6: allowed: whole numbers, 1 to 5"),
        ({"retries": 0}, "retries 0: allowed: whole numbers, 1 to 2147483647"),
        ({"partitioner": "murmur3"}, "partitioner 'murmur3': allowed: random, consistent, consistent_random, murmur2"),
        ({"compression.type": "brotli"}, "compression.type 'brotli': allowed: none, gzip, snappy, lz4, zstd, inherit"),
        ({"compression.type": "lz4", "compression.level": 9}, "compression.level 9: allowed with lz4: -1 to 0"),
        ({"compression.type": "gzip", "compression.level": 10}, "compression.level 10: allowed with gzip: -1 to 9"),
        ({"sasl.password": 7}, "sasl.password of type int: allowed: text"),
        ({"ssl.key.password": b"secret"}, "ssl.key.password of type bytes: allowed: text"),
        ({"on_delivery": "print"}, "on_delivery 'print': allowed: a function"),
        ({"security.protocol": "TLS"}, "security.protocol 'TLS': allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (
            {"security.protocol": "SASL_SSL"},
            "sasl.mechanism is not set: security.protocol SASL_SSL needs one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
            " OAUTHBEARER",
        ),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism 'GSSAPI': allowed: PLAIN, SCRAM-SHA-256"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "oauth_cb: OAUTHBEARER needs a function that gives (token, expiry)",
        ),
        (
            {"linger.ms": 5, "queue.buffering.max.ms": 6},
            "linger.ms and queue.buffering.max.ms are one setting with two values: give one of them",
        ),
        ({"stats_cb": print}, "stats_cb: refused by the native producer: there are no statistics"),
        ({"statistics.interval.ms": 5000}, "statistics.interval.ms 5000: allowed: 0 only: there are no statistics"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method 'oidc': allowed: default only: fetch the token"),
        ({"ssl.keystore.location": "k.p12"}, "ssl.keystore.location: refused by the native producer: give the file"),
        ({"linger": 5}, "linger: unknown setting; did you mean linger.ms?"),
        ({"xyzzy": 5}, "xyzzy: unknown setting"),
        ({"xyzzy": None}, "xyzzy: unknown setting"),
        ({7: 5}, "7: unknown setting"),
        ({"": 5}, "'': unknown setting"),
        ({"linger.ms ": 5}, "'linger.ms ': unknown setting; did you mean linger.ms?"),
        ({b"linger.ms": 5}, "b'linger.ms': unknown setting"),
        ({"test.mock.num.brokers": 3}, "test.mock.num.brokers 3: allowed: 0 only: there are no mock brokers"),
        ({"bootstrap.servers": "SSL://b:1"}, "bootstrap.servers: 'SSL://b:1' is not security.protocol's PLAINTEXT"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "k.pem"},
            "ssl.key.location: of no use without ssl.certificate.location, the key's certificate",
        ),
        (
            {"buffer.memory": 5},
            "buffer.memory: a setting of the Java producer; here it is queue.buffering.max.kbytes",
        ),
        (
            {"transaction.timeout.ms": 60_000},
            "transaction.timeout.ms 60000: not together with transaction.two.phase.commit.enable=true, the default: a"
            " transaction in two-phase commit never expires; remove one of the two",
        ),
        ({"retry.backoff.ms": 9, "retry.backoff.max.ms": 8}, "retry.backoff.ms 9: at most retry.backoff.max.ms, 8"),
        ({"linger.ms": 10, "delivery.timeout.ms": 10}, "linger.ms 10: must be less than delivery.timeout.ms, 10"),
        (
            {"transaction.two.phase.commit.enable": False, "delivery.timeout.ms": 60_001},
            "delivery.timeout.ms 60001: use at most 60000, the value of transaction.timeout.ms",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_allowed_values(config: dict[str, Any], message: str) -> None:
    assert refusal(config).startswith(message)


def test_what_is_no_number_of_a_setting_is_refused_in_a_short_line() -> None:
    for name in (name for name, key in KEYS.items() if key.rule.is_range):
        for value in ("nan", float("nan"), float("inf"), True, "", -(10**400), 10**400, 10**5000):
            message = refusal({name: value})
            assert message.startswith(f"{name} ")
            assert len(message) < 250


def test_a_setting_without_effect_may_have_a_value_that_is_not_equal_to_itself() -> None:
    assert ProducerSettings.of(LEAST | {"debug": float("nan")}) == ProducerSettings.of(LEAST)


@pytest.mark.parametrize("config", [None, "bootstrap.servers=b:1", [("bootstrap.servers", "b:1")]])
@pytest.mark.parametrize("read", [ProducerSettings.of, ClientSettings.from_config, LibrdkafkaSettings.of])
def test_a_configuration_other_than_a_mapping_is_refused(read: Callable[[Any], object], config: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(config)
    assert str(caught.value) == f"the configuration is of type {type(config).__name__}: allowed: a dict of settings"


def test_a_secret_is_never_shown() -> None:
    for name, key in KEYS.items():
        if "password" in name and key.use is Use.TAKEN:
            assert "hunter2" not in refusal({name: ["hunter2"]})
    shown = repr(made(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="hunter2"))
    assert "hunter2" not in shown


@pytest.mark.parametrize("name", sorted(name for name, key in KEYS.items() if key.use is Use.REFUSED))
def test_a_refused_setting_is_refused_with_its_reason(name: str) -> None:
    assert refusal({name: "x"}) == f"{name}: refused by the native producer: {KEYS[name].meaning}"
    assert ProducerSettings.of(LEAST | {name: None}) == ProducerSettings.of(LEAST), "None is as if it were not there"


@pytest.mark.parametrize("name", sorted(name for name, key in KEYS.items() if key.use is Use.NO_EFFECT))
def test_settings_without_effect_are_accepted(name: str) -> None:
    default = KEYS[name].default
    assert ProducerSettings.of(LEAST | {name: "x" if default is None else default}) == ProducerSettings.of(LEAST)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), st.none() | st.booleans() | st.integers() | st.text(max_size=5)))
def test_any_configuration_is_accepted_or_raises_configuration_error(config: dict[str, Any]) -> None:
    outcome = attempt(lambda: ProducerSettings.of(LEAST | config), ConfigurationError)
    if isinstance(outcome, ConfigurationError):
        assert any(name in str(outcome) for name in (*config, "sasl.mechanism", "delivery.timeout.ms"))


def test_every_setting_of_librdkafka_is_known(tmp_path: Path) -> None:
    theirs = client_librdkafka.properties(tmp_path / "properties")
    assert len(theirs) > 150
    names = {setting.name for setting in theirs}
    assert names <= set(KEYS) | set(ALIASES)
    known = names | OURS | {"max.request.size"}
    assert set(KEYS) | set(ALIASES) <= known, "a name that nobody uses"
    for key in theirs:
        if key.scope == "C":
            assert KEYS[key.name].use is Use.NO_EFFECT


def test_ranges_and_defaults_are_librdkafkas_but_for_listed_exceptions(tmp_path: Path) -> None:
    for setting in client_librdkafka.properties(tmp_path / "properties"):
        name = ALIASES.get(setting.name, setting.name)
        key = KEYS[name]
        if key.use is not Use.TAKEN or setting.default == "inherit":
            continue
        if setting.bounds is not None and name not in OTHER_RANGES | {"acks"}:
            lowest, highest = setting.bounds
            assert key.rule.says == f"{lowest} to {highest}", name
            for number in (lowest, highest):
                assert key.rule.read(str(number)) == number
            for number in (lowest - 1, highest + 1):
                with pytest.raises(ValueError, match=str(number)):
                    key.rule.read(number)
        if name not in OTHER_DEFAULTS:
            assert ("" if key.default is None else str(key.default).lower()) == setting.default.lower(), name


def test_the_javas_names_lead_to_settings() -> None:
    for name, ours in JAVAS.items():
        assert name not in KEYS
        assert all(key in KEYS for key in ours.split(" and "))
