"""Reading on until something is there."""

import time
from collections.abc import Callable

from tests.support.peer_clients.client import Got, Place, Receiver
from tests.support.waiting import PATIENCE_SECONDS


def read(consumer: Receiver, count: int) -> list[Got]:
    """The next ``count`` records at least; fewer if they do not come."""
    found: list[Got] = []
    read_until(lambda: len(found) >= count, {consumer: found})
    return found


def read_until(enough: Callable[[], bool], consumers: dict[Receiver, list[Got]]) -> None:
    """Poll each of ``consumers`` in turn, adding to its list, until there is ``enough`` or patience has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not enough() and time.monotonic() < deadline:
        for consumer, found in consumers.items():
            found += consumer.poll()


def read_to_end(consumer: Receiver, *places: Place) -> list[Got]:
    """Assign ``places`` and read them to the ends that the consumer's isolation sees."""
    consumer.assign(places)
    ends = {place: consumer.watermarks(place)[1] for place in places}
    found: list[Got] = []
    read_until(lambda: all(consumer.position(place) >= end for place, end in ends.items()), {consumer: found})
    return found


def values(records: list[Got]) -> list[bytes | None]:
    """Their values."""
    return [record.value for record in records]
