"""A DualWrite over a database behind a proxy that can go silent."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite import DualWrite
from tests.support.coordinator.event_table import CONFIG, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.servers.databases import SERVERS
from tests.support.servers.silent_proxy import SilentProxy

LIMIT = 2.0
"""``database_timeout``."""
KNOWN_TOTAL = 2 * LIMIT
SLACK = 10.0
"""Seconds that a machine with many tests on it may add."""
NEVER = 3600.0
"""A lease_timeout that lets no heartbeat come in between."""


class World:
    """A database behind a proxy, as the application sees it and as it is, and Kafka."""

    def __init__(self, url: str) -> None:
        self.proxy = SilentProxy(url)
        self.seen = ready_engine(url)
        self.cluster = FakeCluster()
        self.engines: list[Engine] = []
        self.made: list[DualWrite] = []

    def dual_write(self, pool: dict[str, Any] | None = None, **options: Any) -> DualWrite:
        engine = create_engine(self.proxy.plain_url, **(pool or {}))
        self.engines.append(engine)
        options = {"lease_timeout": NEVER, "database_timeout": LIMIT, "acquire_timeout": 10.0, **options}
        made = DualWrite(engine, CONFIG, application="a", participant=self.cluster.participant, **options)
        self.made.append(made)
        return made

    def is_alike(self, *values: str) -> bool:
        produced = [value for kafka in self.cluster.ids.values() for value in kafka.committed]
        is_open = any(kafka.ongoing is not None for kafka in self.cluster.ids.values())
        return sorted(stored_values(self.seen)) == sorted(produced) == sorted(values) and not is_open

    def close(self) -> None:
        self.proxy.lets_nobody_in = False
        self.proxy.close()
        for dual_write in self.made:
            dual_write.close(timeout=0)
        for engine in [*self.engines, self.seen]:
            engine.dispose()


@pytest.fixture(params=SERVERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(str(request.getfixturevalue(f"{request.param}_url")))
    yield made
    made.close()


def error_of(act: Callable[[], Any], within: float) -> BaseException | None:
    """What ``act`` raises, in a thread of its own; it fails the test if it takes longer than ``within`` seconds."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within + SLACK)
    assert raised, f"it hangs for longer than {within + SLACK} s"
    return raised[0]
