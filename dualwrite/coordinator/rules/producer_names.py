"""The names of the two Kafka producers. Apart from the producers, so that a command line needs no Kafka client to check
its arguments."""

from typing import Literal

ProducerName = Literal["native", "librdkafka"]
NATIVE: ProducerName = "native"
LIBRDKAFKA: ProducerName = "librdkafka"
PRODUCERS = (NATIVE, LIBRDKAFKA)
"""The producers to choose from."""
