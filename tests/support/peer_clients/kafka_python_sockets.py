"""What kafka-python 3.0.12 leaves open: the collector must not blame a later test for it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.net.compat import KafkaNetClient

CLOSE_SECONDS = 1

leaves_sockets = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
"""For tests with kafka-python, which shuts sockets down and leaves them to the collector."""


@pytest.fixture(autouse=True)
def sockets_are_collected_here() -> Iterator[None]:
    """Collect them at the end of each test of a module that imports this."""
    yield
    gc.collect()


@contextmanager
def kafka_python_producer(**settings: Any) -> Iterator[KafkaProducer]:
    """A KafkaProducer with ``settings``, closed with the block. If its constructor raises, kafka-python leaves a client
    with a thread."""
    clients: list[KafkaNetClient] = []

    def client(**config: Any) -> KafkaNetClient:
        clients.append(KafkaNetClient(**config))
        return clients[0]

    try:
        producer = KafkaProducer(kafka_client=client, **settings)
    except BaseException:
        for left in clients:
            left.close()
        raise
    try:
        yield producer
    finally:
        producer.close(CLOSE_SECONDS)
