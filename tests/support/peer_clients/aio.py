"""aiokafka as a :class:`~tests.support.peer_clients.client.Client`.

Its event loop has a thread, so that members live on.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from tests.support.peer_clients import client
from tests.support.peer_clients.client import Got, Headers, Place, RefusedError
from tests.support.waiting import PATIENCE_SECONDS

ResultT = TypeVar("ResultT")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What ``work`` returns; Kafka's errors as RefusedError."""
        with _refusals():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise RefusedError(getattr(type(error), "message", None) or type(error).__name__) from error


def _check(code: int) -> None:
    if code != 0:
        raise RefusedError(for_code(code).message)


def _where(positions: Mapping[Place, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*place): offset for place, offset in positions.items()}


class AioProducer:
    """Its producer."""

    def __init__(self, loop: Loop, settings: dict[str, Any]) -> None:
        self._loop = loop
        self._sent: list[Any] = []
        loop.run(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> None:
        self._producer = AIOKafkaProducer(**settings)
        self._started = settings["transactional_id"] is None
        if self._started:
            await self._producer.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        sending = self._producer.send(topic, value, key, partition, timestamp, list(headers))
        self._sent.append(self._loop.run(sending))

    def flush(self) -> list[tuple[int, int]]:
        sent, self._sent = self._sent, []
        return [(done.partition, done.offset) for done in self._loop.run(_all(sent))]

    def init_transactions(self) -> None:
        """A transactional producer does this as it starts."""
        self._loop.run(self._producer.start())
        self._started = True

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def send_offsets(self, positions: Mapping[Place, int], group: "AioConsumer") -> None:
        self._loop.run(self._producer.send_offsets_to_transaction(_where(positions), group.group))

    def close(self) -> None:
        self._loop.run(self._producer.stop())


async def _all(futures: list[Any]) -> list[Any]:
    return [await future for future in futures]


class AioConsumer:
    """Its consumer."""

    def __init__(self, loop: Loop, settings: dict[str, Any]) -> None:
        self._loop = loop
        self.group = settings["group_id"]
        loop.run(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> None:
        self._consumer = AIOKafkaConsumer(**settings)
        await self._consumer.start()

    def assign(self, places: Iterable[Place]) -> None:
        self._loop.run(self._call(self._consumer.assign, [TopicPartition(*place) for place in places]))

    def subscribe(self, topics: Sequence[str]) -> None:
        self._loop.run(self._call(self._consumer.subscribe, list(topics)))

    async def _call(self, function: Any, *arguments: Any) -> Any:
        """In the loop's thread, as aiokafka is not made for threads."""
        return function(*arguments)

    def assignment(self) -> set[Place]:
        assigned = self._loop.run(self._call(self._consumer.assignment))
        return {(entry.topic, entry.partition) for entry in assigned}

    def poll(self, seconds: float = 0.1) -> list[Got]:
        found = self._loop.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [
            Got(
                place.topic, place.partition, entry.offset, entry.key, entry.value, list(entry.headers), entry.timestamp
            )
            for place, entries in found.items()
            for entry in entries
        ]

    def seek(self, place: Place, offset: int) -> None:
        self._loop.run(self._call(self._consumer.seek, TopicPartition(*place), offset))

    def position(self, place: Place) -> int:
        return int(self._loop.run(self._consumer.position(TopicPartition(*place))))

    def pause(self, place: Place) -> None:
        self._loop.run(self._call(self._consumer.pause, TopicPartition(*place)))

    def resume(self, place: Place) -> None:
        self._loop.run(self._call(self._consumer.resume, TopicPartition(*place)))

    def commit(self, positions: Mapping[Place, int] | None = None) -> None:
        self._loop.run(self._consumer.commit(None if positions is None else _where(positions)))

    def commit_async(self, positions: Mapping[Place, int]) -> None:
        """aiokafka's commits are awaited."""
        raise NotImplementedError

    def committed(self, place: Place) -> int | None:
        found: int | None = self._loop.run(self._consumer.committed(TopicPartition(*place)))
        return found

    def watermarks(self, place: Place) -> tuple[int, int]:
        wanted = TopicPartition(*place)
        (begin,) = self._loop.run(self._consumer.beginning_offsets([wanted])).values()
        (end,) = self._loop.run(self._consumer.end_offsets([wanted])).values()
        return begin, end

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        (found,) = self._loop.run(self._consumer.offsets_for_times({TopicPartition(*place): timestamp})).values()
        return None if found is None else found.offset

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class AioAdmin:
    """Its admin client, which hands out the broker's answers as they are."""

    def __init__(self, loop: Loop, servers: str) -> None:
        self._loop = loop
        loop.run(self._start(servers))

    async def _start(self, servers: str) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await self._admin.start()

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        topic = NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))
        answer = self._loop.run(self._admin.create_topics([topic], validate_only=validate_only))
        for _, code, *_ in answer.topic_errors:
            _check(code)

    def delete_topic(self, name: str) -> None:
        for _, code, *_ in self._loop.run(self._admin.delete_topics([name])).topic_error_codes:
            _check(code)

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def partitions(self, topic: str) -> int:
        (described,) = self._loop.run(self._admin.describe_topics([topic]))
        _check(described["error_code"])
        return len(described["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        self._loop.run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self) -> dict[str, str | None]:
        (broker,) = self._loop.run(self._admin.describe_cluster())["brokers"]
        return self._config(ConfigResourceType.BROKER, str(broker["node_id"]))

    def _config(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        (answer,) = self._loop.run(self._admin.describe_configs([ConfigResource(kind, name)]))
        ((code, _, _, _, entries),) = answer.resources
        _check(code)
        return {entry[0]: entry[1] for entry in entries}

    def alter_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """By AlterConfigs, which sets what is not named back to its default."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        for answer in self._loop.run(self._admin.alter_configs([resource])):
            for code, *_ in answer.resources:
                _check(code)

    def delete_records(self, place: Place, before: int) -> int:
        wanted = {TopicPartition(*place): RecordsToDelete(before)}
        (low,) = self._loop.run(self._admin.delete_records(wanted)).values()
        return low

    def groups(self) -> set[str]:
        return {name for name, *_ in self._loop.run(self._admin.list_consumer_groups())}

    def group_state(self, group: str) -> str:
        return str(self._described(group)["state"]).upper()

    def group_members(self, group: str) -> int:
        return len(self._described(group)["members"])

    def _described(self, group: str) -> dict[str, Any]:
        (answer,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        described: dict[str, Any] = answer.to_object()["groups"][0]
        _check(described["error_code"])
        return described

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): entry.offset for place, entry in found.items()}

    def alter_group_offsets(self, group: str, positions: Mapping[Place, int]) -> None:
        """aiokafka cannot."""
        raise NotImplementedError

    def delete_group_offsets(self, group: str, places: Iterable[Place]) -> None:
        """aiokafka cannot."""
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        """aiokafka cannot."""
        raise NotImplementedError

    def latest_offset(self, place: Place) -> int:
        """aiokafka cannot."""
        raise NotImplementedError

    def close(self) -> None:
        self._loop.run(self._admin.close())


class Aio:
    """Makes them."""

    name = "aiokafka"
    can = frozenset({client.TRANSACTIONS, client.STATIC_MEMBERS, client.VALIDATION})

    def __init__(self) -> None:
        self._loop = Loop()

    def close(self) -> None:
        """Stop the loop."""
        self._loop.close()

    def producer(
        self,
        servers: str,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str | None = None,
        linger_ms: int = 0,
        largest: int = 1_000_000,
    ) -> AioProducer:
        settings = {
            "bootstrap_servers": servers,
            "transactional_id": transactional_id,
            "enable_idempotence": idempotent or transactional_id is not None,
            "compression_type": compression,
            "linger_ms": linger_ms,
            "max_request_size": largest,
        }
        return AioProducer(self._loop, settings)

    def consumer(
        self,
        servers: str,
        *,
        group: str | None = None,
        committed_only: bool = False,
        reset: str = "earliest",
        instance: str | None = None,
        cooperative: bool = False,
        session_timeout_ms: int = 10_000,
    ) -> AioConsumer:
        assert not cooperative, "aiokafka has no cooperative assignor"
        settings = {
            "bootstrap_servers": servers,
            "group_id": group,
            "group_instance_id": instance,
            "enable_auto_commit": False,
            "isolation_level": "read_committed" if committed_only else "read_uncommitted",
            "auto_offset_reset": reset,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": 200,
            "exclude_internal_topics": False,
        }
        return AioConsumer(self._loop, settings)

    def admin(self, servers: str) -> AioAdmin:
        return AioAdmin(self._loop, servers)
