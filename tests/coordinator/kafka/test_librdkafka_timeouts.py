"""How long librdkafka waits for an answer: a request that is only slow must not be taken for a lost one."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.wire.apis import ApiKey
from tests.support.forked import ForkedBroker
from tests.support.servers.holding_proxy import HoldingProxy

SCANS_SECONDS = 3.0
"""librdkafka looks once a second for requests that have timed out."""


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[HoldingProxy]:
    """A coordinator that never answers InitProducerId."""
    proxy = HoldingProxy(ApiKey.INIT_PRODUCER_ID)
    proxy.swallows = True
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with ForkedBroker(tmp_path / "broker", config=advertised) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        yield proxy
    proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("derives", [False, True], ids=["as the library sets it", "as librdkafka derives it"])
def test_a_request_is_repeated_only_if_its_answer_takes_long(silent: HoldingProxy, derives: bool) -> None:
    """The negative control is librdkafka's own timeout, which has always passed: its factor 1000 overflows."""
    config = {"bootstrap.servers": f"127.0.0.1:{silent.port}", "transactional.id": "app-0"}
    librdkafka = LibrdkafkaSettings.of(config).librdkafka
    if derives:
        del librdkafka["socket.timeout.ms"]
    lines: list[str] = []
    watch = logging.Logger("librdkafka")
    watch.addFilter(lambda line: lines.append(line.getMessage()) or False)
    producer = Producer({**librdkafka, "logger": watch})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(SCANS_SECONDS)
    # The request that has timed out closes its connection, which may be what librdkafka says last.
    assert caught.value.args[0].code() in (KafkaError._TIMED_OUT, *([KafkaError._TRANSPORT] if derives else []))
    producer.poll(0)
    has_timed_out = any("REQTMOUT" in line for line in lines)
    assert (has_timed_out, silent.seen[ApiKey.INIT_PRODUCER_ID] > 1) == (derives, derives)
