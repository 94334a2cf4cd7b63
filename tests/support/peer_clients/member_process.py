"""A librdkafka member of a consumer group in a process of its own, which dies without a word."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MEMBER = """
import sys
from confluent_kafka import Consumer

servers, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic], on_assign=lambda _, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(0.1)
"""


@contextmanager
def member_process(servers: str, group: str, topic: str, partitions: int) -> Iterator[subprocess.Popen[str]]:
    """A member of the consumer protocol that has got ``partitions`` of ``topic``; killed at the end of the block."""
    command = [sys.executable, "-c", _MEMBER, servers, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(partitions)
            yield process
        finally:
            process.kill()
