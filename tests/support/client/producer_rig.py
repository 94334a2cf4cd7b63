"""Both faces of the native producer over a simulated cluster, called alike."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dualwrite.client.engine.contract import Operation
from dualwrite.client.producer.base_producer import BaseProducer
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState, TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver


class FaceDriver:
    """A simulated cluster as the driver of a face. Nothing takes time."""

    def __init__(self, engine: Any, client: Any) -> None:
        self.cluster = SimulatedCluster()
        self.engine = engine
        self.simulated = SimulatedDriver(self.cluster)
        self.simulated.engine = engine

    def wait(self, operation: Operation) -> Any:
        self.simulated.now = max(self.simulated.now, time.monotonic())
        return self.simulated.run(operation)

    def pump(self) -> None:
        self.simulated.now = max(self.simulated.now, time.monotonic())
        while (commands := self.simulated.engine.step(self.simulated.now)) or self.simulated.events:
            for command in commands:
                self.simulated.perform(command)
            while self.simulated.events:
                self.simulated.events.popleft()()

    def close(self) -> None:
        """There is nothing to close."""


class AsyncFaceDriver(FaceDriver):
    """The same, awaited."""

    async def wait(self, operation: Operation) -> Any:
        return super().wait(operation)

    async def close(self) -> None:  # type: ignore[override]
        """There is nothing to close."""


def done(result: Any) -> Any:
    """What a face's method gives: the asynchronous one's never has to wait here."""
    if not isinstance(result, Coroutine):
        return result
    with pytest.raises(StopIteration) as ended:
        result.send(None)
    return ended.value.value


class ProducerRig:
    """A face with its cluster in sight, and its methods of either kind called alike."""

    def __init__(self, kind: type[BaseProducer], **config: Any) -> None:
        self._kind = kind
        basis = {"bootstrap.servers": "one:1", "transactional.id": "app-0"}
        settings = basis | {key.replace("_", "."): value for key, value in config.items()}
        make: Any = kind
        self.face: Any = make(settings, make_driver=self._make_driver)
        self.call("init_transactions")

    def _make_driver(self, engine: Any, client: Any) -> FaceDriver:
        self.engine = engine
        self.driver: Any = (FaceDriver if self._kind is TwoPhaseProducer else AsyncFaceDriver)(engine, client)
        return self.driver

    def begun(self) -> "ProducerRig":
        self.call("begin_transaction")
        return self

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return done(getattr(self.face, name)(*arguments, **options))

    def produce(self, value: str, on_delivery: Callable[[Any, Any], None] | None = None, **options: Any) -> None:
        self.call("produce", "t", value, on_delivery=on_delivery, **options)

    def fence(self) -> None:
        """Let another producer have taken over, as the broker answers to the next records."""
        self.driver.cluster.refusals[ApiKey.PRODUCE] = deque([ErrorCode.PRODUCER_FENCED] * 3)

    @property
    def state(self) -> ProducerState:
        state: ProducerState = self.face.state
        return state

    @property
    def committed(self) -> list[bytes | None]:
        log = self.driver.cluster.logs.get(TopicPartition("t", 0))
        return log.committed() if log else []


Make = Callable[..., ProducerRig]


def raising(_error: Any, _record: Any) -> None:
    """A delivery callback of a user's that fails."""
    raise ZeroDivisionError("a callback's")


def raising_this(error: BaseException) -> Callable[[Any, Any], None]:
    """One that raises ``error``."""

    def on_delivery(_error: Any, _record: Any) -> None:
        raise error

    return on_delivery


ERRORS = [kind("a callback's") for kind in (ZeroDivisionError, asyncio.CancelledError, InvalidTransactionStateError)]
"""What callbacks may raise: the last two are also what a call raises that has done nothing."""

CALLS = [
    ("init_transactions", ()),
    ("begin_transaction", ()),
    ("send_offsets_to_transaction", ([], "group")),
    ("poll", ()),
    ("flush", ()),
    ("prepare_transaction", ()),
    ("complete_transaction", (PreparedTxnState(),)),
    ("commit_transaction", ()),
    ("abort_transaction", ()),
    ("close", ()),
]
"""A call of each verb but produce(): its name and its arguments."""
