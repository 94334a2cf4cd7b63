"""The option that says which Kafka producer a verb works with."""

import argparse

from dualwrite.coordinator.kafka.choice import PRODUCERS


def add_producer(parser: argparse.ArgumentParser) -> None:
    """Add ``--producer``; None is what DualWrite chooses by itself."""
    parser.add_argument(
        "--producer",
        choices=PRODUCERS,
        help="the Kafka producer (native, where the cluster has transaction.version 2; librdkafka elsewhere)",
    )
