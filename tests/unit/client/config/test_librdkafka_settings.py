"""The librdkafka configuration of a dual write's producer."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.errors import ConfigurationError

TWO_PHASE = "transaction.two.phase.commit.enable"


def made(**overrides: Any) -> LibrdkafkaSettings:
    return LibrdkafkaSettings.of(config(**overrides))


def config(**overrides: Any) -> dict[str, Any]:
    minimal = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0"}
    return minimal | {key.replace("_", "."): value for key, value in overrides.items()}


def test_a_transaction_never_expires_and_a_record_does() -> None:
    librdkafka = made().librdkafka
    assert librdkafka["transaction.timeout.ms"] == 2147483547
    assert librdkafka["delivery.timeout.ms"] == 30_000
    assert made().delivery_timeout == 30.0


@pytest.mark.parametrize(
    ("given", "transaction", "delivery"),
    [({}, 60_000, 30.0), ({"transaction.timeout.ms": "2000"}, 2000, 2.0)],
)
def test_without_two_phase_commit_a_transaction_expires_and_a_record_no_later(
    given: dict[str, Any], transaction: int, delivery: float
) -> None:
    result = LibrdkafkaSettings.of(config() | {TWO_PHASE: "False"} | given)
    assert (result.two_phase, result.librdkafka["transaction.timeout.ms"]) == (False, transaction)
    assert result.delivery_timeout == delivery
    Producer(result.librdkafka)  # librdkafka agrees


def test_the_callers_mapping_is_left_as_it_is() -> None:
    given = config(on_delivery=print, socket_timeout_ms=1000)
    before = dict(given)
    LibrdkafkaSettings.of(given)
    assert given == before


@pytest.mark.parametrize("key", ["message.timeout.ms", "delivery.timeout.ms"])
def test_the_users_delivery_timeout_stands_under_either_name(key: str) -> None:
    result = LibrdkafkaSettings.of(config() | {key: "4000"})
    assert result.delivery_timeout == 4.0
    assert {name for name in result.librdkafka if name.endswith("y.timeout.ms") or name.startswith("message.")} == {key}


@pytest.mark.parametrize(("key", "expected"), [("linger.ms", 7), ("queue.buffering.max.ms", None)])
def test_the_users_linger_stands_under_either_name(key: str, expected: int | None) -> None:
    result = LibrdkafkaSettings.of(config() | {key: 7}).librdkafka
    assert (result[key], result.get("linger.ms")) == (7, expected)


def test_without_a_wish_nothing_lingers_and_a_restarted_broker_is_met_soon() -> None:
    assert (made().librdkafka["linger.ms"], made().librdkafka["reconnect.backoff.max.ms"]) == (0, 1000)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, 15_000),
        ({"delivery.timeout.ms": 4_000}, 2_000),
        ({"message.timeout.ms": 7_200_000}, 30_000),
        ({"topic.metadata.propagation.max.ms": 40_000}, 40_000),
    ],
    ids=["by default", "in haste", "patiently", "as the user says"],
)
def test_a_topic_is_refused_as_unknown_before_its_records_time_out(overrides: dict[str, Any], expected: int) -> None:
    """Whoever is told of a timeout tries again, for ever, where the topic is gone."""
    assert made(**overrides).librdkafka["topic.metadata.propagation.max.ms"] == expected


@pytest.mark.parametrize("key", ["message.timeout.ms", "delivery.timeout.ms"])
def test_librdkafka_gets_the_delivery_timeout_that_the_library_waits_for(key: str) -> None:
    """librdkafka takes a number that begins with 0 for an octal one."""
    assert (made(**{key: "010000"}).delivery_timeout, made(**{key: "010000"}).librdkafka[key]) == (10.0, 10_000)


def test_a_socket_timeout_of_0_is_not_taken_for_the_default() -> None:
    assert made(socket_timeout_ms=0).librdkafka["socket.timeout.ms"] == 0, "librdkafka refuses it by its name"


def test_other_settings_are_passed_on() -> None:
    assert made(compression_type="zstd").librdkafka["compression.type"] == "zstd"


def test_two_phase_commit_may_be_asked_for_by_its_java_name() -> None:
    assert TWO_PHASE not in LibrdkafkaSettings.of(config() | {TWO_PHASE: True}).librdkafka


@pytest.mark.parametrize("two_phase", [{}, {TWO_PHASE: True}, {TWO_PHASE: "true"}])
def test_a_transaction_timeout_is_refused_with_two_phase_commit(two_phase: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms"):
        LibrdkafkaSettings.of(config(transaction_timeout_ms=60000) | two_phase)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({TWO_PHASE: "perhaps"}, "'perhaps': allowed: true, false"),
        ({TWO_PHASE: False, "transaction.timeout.ms": "long"}, r"transaction\.timeout\.ms 'long'"),
        (
            {TWO_PHASE: False, "transaction.timeout.ms": 2000, "message.timeout.ms": 2001},
            r"message\.timeout\.ms 2001: use at most 2000, the value of transaction\.timeout\.ms",
        ),
        ({"transactional.id": ""}, r"transactional\.id is not set"),
        ({"transactional.id": "a\nb"}, "transactional id"),
        ({"delivery.report.only.error": "true"}, r"delivery\.report\.only\.error"),
        ({"message.timeout.ms": 0}, r"message\.timeout\.ms 0"),
        (
            {"default.topic.config": {"message.timeout.ms": 0}},
            r"^default\.topic\.config: put its entries into the configuration itself$",
        ),
        (
            {"delivery.timeout.ms": 30_000, "message.timeout.ms": 0},
            r"^delivery\.timeout\.ms and message\.timeout\.ms are one setting with two values: give one of them$",
        ),
        ({"delivery.timeout.ms": "soon"}, r"delivery\.timeout\.ms 'soon'"),
        ({"delivery.timeout.ms": True}, r"delivery\.timeout\.ms True"),
        ({TWO_PHASE: False, "transaction.timeout.ms": 10**400, "delivery.timeout.ms": 10**400}, r"\.timeout\.ms 10+"),
    ],
)
def test_a_setting_that_contradicts_a_dual_write_is_named(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        LibrdkafkaSettings.of(config() | overrides)


@pytest.mark.parametrize("key", ["message.timeout.ms", "delivery.timeout.ms", "linger.ms", "transaction.timeout.ms"])
def test_none_is_as_if_the_setting_were_not_given(key: str) -> None:
    """As for the native producer and the control plane: no record may stay unacknowledged for ever by it."""
    assert LibrdkafkaSettings.of(config() | {key: None}) == made()


@pytest.mark.parametrize(("flag", "value"), [("t", True), ("1", True), (1, True), ("F", False), (0, False)])
def test_two_phase_commit_is_spelt_as_librdkafka_spells_a_flag_for_every_producer(flag: Any, value: bool) -> None:
    given = config() | {TWO_PHASE: flag}
    assert LibrdkafkaSettings.of(given).two_phase is ProducerSettings.of(given).two_phase_commit is value


def test_both_producers_say_the_same_of_a_timeout_beside_two_phase_commit() -> None:
    for settings in (LibrdkafkaSettings, ProducerSettings):
        with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms 60000: not together with .*=true"):
            settings.of(config(transaction_timeout_ms=60000))


@pytest.mark.parametrize("key", ["on_delivery", "dr_cb"])
def test_the_configurations_delivery_callback_is_kept_for_records_without_one(key: str) -> None:
    result = LibrdkafkaSettings.of(config() | {key: print})
    assert result.on_delivery is print
    assert key not in result.librdkafka


@pytest.mark.parametrize("overrides", [{}, {"socket.timeout.ms": 1000}, {"delivery.timeout.ms": 500, "linger.ms": 1}])
def test_librdkafka_takes_the_settings_for_those_of_a_transactional_producer(overrides: dict[str, Any]) -> None:
    producer = Producer(quiet(LibrdkafkaSettings.of(config() | overrides).librdkafka))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(0.01)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT, "no broker; without the id it is _NOT_CONFIGURED"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 60_000),
        ({"socket.timeout.ms": "1000"}, 1000),
        ({"socket.timeout.ms": None}, 60_000),
        ({TWO_PHASE: False, "transaction.timeout.ms": 7_200_000}, 60_000),
        ({TWO_PHASE: False, "transaction.timeout.ms": 2000}, 2000),
        ({TWO_PHASE: False, "transaction.timeout.ms": 2000, "socket.timeout.ms": 300_000}, 2000),
    ],
    ids=["by default", "as the user says", "not given", "a long transaction", "a short one", "shorter than that"],
)
def test_librdkafka_never_derives_the_time_of_an_answer_from_that_of_a_transaction(
    given: dict[str, Any], expected: int
) -> None:
    """The derived one overflows (librdkafka_settings.py). coordinator/kafka/test_librdkafka_timeouts.py shows what
    happens then."""
    librdkafka = LibrdkafkaSettings.of(config() | given).librdkafka
    assert librdkafka["socket.timeout.ms"] == expected
    Producer(quiet(librdkafka))  # librdkafka agrees


def test_librdkafka_still_refuses_a_socket_timeout_beside_the_longest_transaction() -> None:
    """When this fails, librdkafka's comparison has been mended, and 2147483647 can ask for two-phase commit."""
    with pytest.raises(KafkaException, match=r"socket\.timeout\.ms"):
        Producer(quiet(made().librdkafka | {"transaction.timeout.ms": 2147483647}))


def quiet(librdkafka: dict[str, Any]) -> dict[str, Any]:
    return librdkafka | {"log_level": 0}


def test_librdkafka_always_tells_of_lost_connections() -> None:
    """Its log is the only place; and a request that it repeats may come late, and end a later transaction."""
    quiet = {"bootstrap.servers": "a:1", "transactional.id": "app", "log.connection.close": False, "log_level": 3}
    made = LibrdkafkaSettings.of(quiet).librdkafka
    assert (made["log.connection.close"], made["log_level"]) == (True, 6)
    assert LibrdkafkaSettings.of(quiet | {"log_level": 7}).librdkafka["log_level"] == 7


@pytest.mark.parametrize("level", ["debug", 8, -1, float("inf"), [6]])
def test_another_log_level_than_librdkafkas_is_refused_by_its_name(level: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^log_level .*: allowed: whole numbers, 0 to 7$"):
        LibrdkafkaSettings.of({"bootstrap.servers": "a:1", "transactional.id": "app", "log_level": level})
