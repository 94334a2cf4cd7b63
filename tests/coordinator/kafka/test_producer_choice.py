"""Which producer a DualWrite takes: the one that was asked for, or the native one wherever it works."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka import choice as producers
from dualwrite.coordinator.kafka.choice import ProducerChoice
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.wire.apis import APIS, ApiKey
from tests.support.client.scripted_broker import ScriptedBroker, scripted
from tests.support.coordinator.aio.async_dual_writes import async_url
from tests.support.coordinator.event_table import CONFIG
from tests.support.coordinator.fake_kafka import FakeKafka

REFUSED = {"stats_cb": print}
V6, V5 = (0, 6), (0, 5)


def says(broker: ScriptedBroker, transaction_version: int | None, init_producer_id: tuple[int, int] = V6) -> None:
    """Let the broker's ApiVersions name a level of transaction.version; None is a broker that knows no features."""
    response = APIS[ApiKey.API_VERSIONS].response
    offered = broker.versions | {ApiKey.INIT_PRODUCER_ID: init_producer_id}
    finalized = [] if transaction_version is None else [("transaction.version", transaction_version)]
    broker.answer(
        ApiKey.API_VERSIONS,
        response(
            error_code=0,
            api_keys=[response.ApiVersion(api_key=int(key), min_version=low, max_version=high)
                      for key, (low, high) in offered.items()],
            throttle_time_ms=0,
            finalized_features_epoch=-1 if transaction_version is None else 0,
            finalized_features=[response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=0)
                                for name, level in finalized],
        ),
    )  # fmt: skip


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        yield running


def choice(broker: ScriptedBroker, wanted: str | None = None, **settings: Any) -> ProducerChoice:
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "app-0", **settings}
    return ProducerChoice(config, wanted)


def made(chosen: ProducerChoice) -> type:
    participant = chosen.participant("app-0")
    participant.close()
    return type(participant)


@pytest.mark.parametrize(
    ("version", "init_producer_id", "expected", "reason"),
    [
        (2, V6, NativeProducer, "transaction.version is 2"),
        (3, V6, NativeProducer, "transaction.version is 3"),
        (1, V6, LibrdkafkaProducer, "transaction.version is 1"),
        (0, V6, LibrdkafkaProducer, "transaction.version is 0"),
        (None, V6, LibrdkafkaProducer, "transaction.version is 0"),
        (2, V5, LibrdkafkaProducer, "does not offer KIP-939's InitProducerId"),
    ],
)
def test_the_cluster_determines_the_default_producer_and_the_reason_is_logged(
    broker: ScriptedBroker,
    caplog: pytest.LogCaptureFixture,
    version: int | None,
    init_producer_id: tuple[int, int],
    expected: type,
    reason: str,
) -> None:
    says(broker, version, init_producer_id)
    chosen = choice(broker)
    assert chosen.chosen is None
    with caplog.at_level(logging.INFO, "dualwrite"):
        assert made(chosen) is expected
    assert chosen.chosen == ("native" if expected is NativeProducer else "librdkafka")
    (line,) = [line for line in caplog.messages if "the producer is" in line]
    assert line.startswith(f"app-0: the producer is {chosen.chosen}: ")
    assert reason in line


def test_the_choice_is_made_once(broker: ScriptedBroker) -> None:
    says(broker, 2)
    chosen = choice(broker)
    assert made(chosen) is NativeProducer
    asked = len(broker.seen)
    says(broker, 0)
    assert made(chosen) is NativeProducer
    assert len(broker.seen) == asked


def test_a_setting_that_only_librdkafka_knows_is_reason_enough_to_take_it(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    says(broker, 2)
    with caplog.at_level(logging.INFO, "dualwrite"):
        chosen = choice(broker, **REFUSED)
    assert (chosen.chosen, made(chosen)) == ("librdkafka", LibrdkafkaProducer)
    assert any("librdkafka: stats_cb: refused" in line for line in caplog.messages)
    assert not broker.requests(ApiKey.API_VERSIONS) or broker.seen[0].client_id != "dualwrite"


def test_a_setting_unknown_to_both_producers_is_refused(broker: ScriptedBroker) -> None:
    with pytest.raises(ConfigurationError, match="lingr"):
        choice(broker, lingr=1).participant("app-0")


def test_a_wrong_value_is_reported_under_the_users_name_of_the_setting(broker: ScriptedBroker) -> None:
    """librdkafka calls it queue.buffering.max.ms."""
    with pytest.raises(ConfigurationError, match=r"; the native producer: linger.ms 'abc': allowed: 0 to 900000$"):
        choice(broker, **{"linger.ms": "abc"}).participant("app-0")
    with pytest.raises(ConfigurationError, match=r"queue.buffering.max.ms\"$"):
        choice(broker, "librdkafka", **{"linger.ms": "abc"}).participant("app-0")


def test_librdkafka_is_taken_without_a_question_if_it_is_asked_for(broker: ScriptedBroker) -> None:
    says(broker, 2)
    chosen = choice(broker, "librdkafka")
    assert (chosen.chosen, made(chosen)) == ("librdkafka", LibrdkafkaProducer)


def test_native_is_refused_with_the_setting_that_it_does_not_know_and_what_to_do(broker: ScriptedBroker) -> None:
    with pytest.raises(ConfigurationError, match=r'stats_cb: refused .*; or use producer="librdkafka"'):
        choice(broker, "native", **REFUSED)


@pytest.mark.parametrize("version", [0, 1, None])
def test_native_is_refused_on_a_cluster_without_tv2_before_anything_else_is_asked_of_it(
    broker: ScriptedBroker, version: int | None
) -> None:
    says(broker, version)
    chosen = choice(broker, "native")
    with pytest.raises(ConfigurationError, match=r'transaction.version is \d.*use producer="librdkafka"'):
        chosen.participant("app-0")
    assert chosen.chosen is None
    assert {seen.api_key for seen in broker.seen} == {ApiKey.API_VERSIONS}


def test_native_is_taken_where_it_works(broker: ScriptedBroker) -> None:
    says(broker, 2)
    assert made(choice(broker, "native")) is NativeProducer


def test_no_producer_is_chosen_while_no_broker_answers(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PROBE_TIMEOUT", 0.05)
    chosen = ProducerChoice({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0"})
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1"):
        chosen.participant("app-0")
    assert chosen.chosen is None


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({}, "30 s"),
        ({"delivery.timeout.ms": 50}, "0.05 s"),
        ({"message.timeout.ms": "50"}, "0.05 s"),
        ({"delivery.timeout.ms": 90_000}, "30 s"),
    ],
)
def test_the_version_probe_waits_for_the_delivery_timeout(
    config: dict[str, Any], seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def control(_config: Any, *, timeout: float) -> Any:
        asked.append(timeout)
        raise KafkaUnavailableError("nobody")

    monkeypatch.setattr(producers, "ControlPlane", control)
    servers = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0"}
    with pytest.raises(KafkaUnavailableError):
        ProducerChoice(servers | config).participant("app-0")
    assert [f"{each:g} s" for each in asked] == [seconds]


@pytest.mark.parametrize("wanted", ["Native", "kafka-python", ""])
def test_an_unknown_producer_name_is_refused_with_the_valid_names(sqlite_engine: Engine, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=f"producer '{wanted}': use 'native' or 'librdkafka'"):
        DualWrite(sqlite_engine, CONFIG, application="a", producer=wanted)


def test_producer_and_participant_cannot_be_given_together(sqlite_engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="give one of the two"):
        DualWrite(sqlite_engine, CONFIG, application="a", producer="native", participant=FakeKafka().participant)


def test_a_dual_write_names_its_producer(sqlite_engine: Engine, broker: ScriptedBroker) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    with DualWrite(sqlite_engine, config, application="a") as asking:
        assert asking.producer is None
    with DualWrite(sqlite_engine, config, application="a", producer="librdkafka") as told:
        assert told.producer == "librdkafka"
    with DualWrite(sqlite_engine, config, application="a", participant=FakeKafka().participant) as own:
        assert own.producer is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"acks": "1"}, "acks '1': allowed: "),
        ({"lingr.ms": 5}, "lingr.ms: unknown setting; did you mean linger.ms?"),
        ({"linger.ms": "abc"}, "linger.ms 'abc': allowed"),
    ],
)
@pytest.mark.parametrize("producer", [None, "native"])
@pytest.mark.parametrize("cls", [DualWrite, AsyncDualWrite])
def test_a_wrong_setting_is_refused_at_construction_without_a_request(
    sqlite_url: str,
    cls: Any,
    producer: str | None,
    settings: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("asked"))
    engine = create_engine(sqlite_url) if cls is DualWrite else create_async_engine(async_url(sqlite_url, "aiosqlite"))
    with pytest.raises(ConfigurationError) as raised:
        cls(engine, {**CONFIG, **settings}, application="a", producer=producer)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"), [({"acks": "1"}, "acks"), ({"lingr.ms": 5}, "lingr.ms"), ({"batch.size": -1}, "batch.size")]
)
def test_a_setting_that_librdkafka_refuses_is_refused_at_construction(
    sqlite_engine: Engine, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        DualWrite(sqlite_engine, {**CONFIG, **settings}, application="a", producer="librdkafka")
    DualWrite(sqlite_engine, {**CONFIG, "stats_cb": print}, application="a").close()


def test_a_token_is_not_asked_for_at_construction(sqlite_engine: Engine) -> None:
    config = {**CONFIG, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "stats_cb": print}
    DualWrite(sqlite_engine, {**config, "oauth_cb": lambda _: pytest.fail("asked")}, application="a").close()
