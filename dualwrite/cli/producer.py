"""The option that selects the Kafka producer of a verb."""

import argparse

from dualwrite.coordinator.rules.producer_names import PRODUCERS


def add_producer(parser: argparse.ArgumentParser) -> None:
    """Add ``--producer``; without it (None) DualWrite chooses the producer."""
    parser.add_argument(
        "--producer",
        choices=PRODUCERS,
        help="the Kafka producer (native, where the cluster has transaction.version 2; librdkafka elsewhere)",
    )
