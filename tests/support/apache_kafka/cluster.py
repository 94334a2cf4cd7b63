"""A real cluster of Apache Kafka (KRaft) on loopback, whose brokers are killed and come back.

One controller, so that a failover takes as long as it takes a broker's session to end, and there is none while it is
dead itself; and brokers with three replicas of everything, two of which must be in sync: with one of three dead,
everything goes on.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.protocol.admin import ElectionType

from dualwrite.client.protocol.requests import TRANSACTION
from dualwrite.wire.apis import FindCoordinatorRequest, Message, MetadataRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.class_archive import QUICK_SERVER, make_kafka_classes
from tests.support.apache_kafka.formatting import new_cluster_id
from tests.support.apache_kafka.process import START_SECONDS, KafkaProcess, free_ports
from tests.support.requests.calls import ask_for_topics, configs, unique, wanted_topic
from tests.support.requests.raw_client import RawClient

TRANSACTION_LOG = "__transaction_state"

_CONTROLLER = 100
_POLL_SECONDS = 0.1
_BROKER_JVM = ("-Xms192m", "-Xmx320m", *QUICK_SERVER)
_CONTROLLER_JVM = ("-Xms64m", "-Xmx160m", *QUICK_SERVER)

ResultT = TypeVar("ResultT")

_CONTROLLER_SETTINGS = {
    "process.roles": "controller",
    "node.id": str(_CONTROLLER),
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
    # A killed broker cannot say goodbye: it keeps its leaderships for this long.
    "broker.session.timeout.ms": "1800",
    "leader.imbalance.check.interval.seconds": "3600",  # leaders move when a test moves them
    "min.insync.replicas": "2",
}

_BROKER_SETTINGS = {
    "process.roles": "broker",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "broker.session.timeout.ms": "1800",
    "broker.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    # Two-phase commit as far as this release has it, and for clients that ask for it with the timeout alone.
    "transaction.two.phase.commit.enable": "true",
    "transaction.max.timeout.ms": "2147483647",
    "unstable.api.versions.enable": "true",
    # Small: three of them share a machine with the tests.
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.io.threads": "3",
    "num.network.threads": "1",
    "replica.fetch.backoff.ms": "50",
}


class KafkaCluster:
    """``with KafkaCluster(directory) as cluster: …``: brokers 1, 2, …, of one cluster.

    Skips the test where there is no JVM (see :func:`tests.support.apache_kafka.jars.require_java`).

    :param home: an empty directory: each node has one of its own in it.
    :param nodes: how many brokers.
    :param config: settings of the brokers beside or instead of those above.
    :param told: by node, the port that clients are told to reach it by; its own where it has none here.
    """

    def __init__(
        self, home: Path, nodes: int = 3, config: Mapping[str, str] | None = None, told: Mapping[int, int] | None = None
    ) -> None:
        self.nodes = tuple(range(1, nodes + 1))
        self.live = set[int]()
        """The nodes that are meant to run."""
        controller, *ports = free_ports(1 + 2 * nodes)
        self.ports = dict(zip(self.nodes, ports, strict=False))
        """By node, the port that it listens on for clients."""
        self._told = {**self.ports, **(told or {})}
        self._cluster_id = new_cluster_id()
        quorum = {
            "controller.quorum.voters": f"{_CONTROLLER}@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
        }
        self._controller = KafkaProcess(
            home / "controller",
            {**_CONTROLLER_SETTINGS, **quorum, "listeners": f"CONTROLLER://127.0.0.1:{controller}"},
            _CONTROLLER_JVM,
        )
        self._brokers = {
            node: KafkaProcess(
                home / f"broker-{node}",
                {
                    **_BROKER_SETTINGS,
                    **quorum,
                    "node.id": str(node),
                    "listeners": f"CLIENT://127.0.0.1:{self.ports[node]},INTERNAL://127.0.0.1:{internal}",
                    "advertised.listeners": f"CLIENT://127.0.0.1:{self._told[node]},INTERNAL://127.0.0.1:{internal}",
                    **(config or {}),
                },
                _BROKER_JVM,
            )
            for node, internal in zip(self.nodes, ports[nodes:], strict=True)
        }
        self._processes = (*self._brokers.values(), self._controller)
        self._has_controller = True
        """True if the controller is meant to run."""

    # --- its life

    def start(self) -> "KafkaCluster":
        """Start every node, and wait until each is in sync and transactions have a coordinator."""
        make_kafka_classes()
        try:
            for process in self._processes:
                process.start(self._cluster_id)
            self.live = set(self.nodes)
            self._until(self._views, lambda views: all(len(v.brokers) == len(self.nodes) for v in views), "all nodes")
            self.coordinator_of("warm-up")
            self.wait_until_in_sync()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill every node: a clean stop takes seconds, and no test reads the data again."""
        self.live.clear()
        for process in self._processes:
            process.kill()

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self.live.discard(node)
        self._brokers[node].kill()

    def restart(self, node: int) -> None:
        """Start a node that was killed; wait for :meth:`wait_until_in_sync` before the next is killed."""
        self._brokers[node].start(self._cluster_id)
        self.live.add(node)

    def kill_controller(self) -> None:
        """SIGKILL. Nothing that is led stops, and nothing gets another leader."""
        self._has_controller = False
        self._controller.kill()

    def restart_controller(self) -> None:
        """Start the controller that was killed."""
        self._controller.start(self._cluster_id)
        self._has_controller = True

    def restart_dead(self) -> None:
        """Start the nodes that were killed and not started again, and wait until all replicas are in sync."""
        if not self._has_controller:
            self.restart_controller()
        for node in sorted(set(self.nodes) - self.live):
            self.restart(node)
        self.wait_until_in_sync()

    def log(self, node: int) -> str:
        """Everything that ``node`` said."""
        return self._brokers[node].log()

    def __enter__(self) -> "KafkaCluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what there is

    @property
    def bootstrap_servers(self) -> str:
        """The advertised address of every node."""
        return ",".join(f"127.0.0.1:{port}" for port in self._told.values())

    def connect(self, node: int) -> RawClient:
        """A connection to ``node`` itself, whatever clients are told."""
        return RawClient(f"127.0.0.1:{self.ports[node]}")

    def create_topic(self, partitions: int = 3, **settings: str) -> str:
        """A topic with a name of its own, in sync on all nodes; ``settings`` have underscores for dots."""
        name = unique("topic")
        values = {"min.insync.replicas": "2", **{key.replace("_", "."): value for key, value in settings.items()}}
        wanted = wanted_topic(name, partitions, len(self.nodes), configs=configs({**values}))
        with self.connect(min(self.live)) as client:
            (result,) = ask_for_topics(client, wanted)
        assert result.error_code == ErrorCode.NONE, result.error_message
        self.wait_until_in_sync(name)
        return name

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The node that leads ``partition`` now, as every live node has it."""

        def look() -> set[int]:
            entries = (self._entry(view, topic, partition) for view in self._views())
            return {-1 if entry is None else entry.leader_id for entry in entries}

        (leader,) = self._until(look, self._is_one_live_node, f"a leader of {topic}-{partition}")
        return leader

    def coordinator_of(self, key: str, kind: int = TRANSACTION) -> int:
        """The node that coordinates the transactional id, or the group, ``key`` now, as every live node has it."""
        request = FindCoordinatorRequest(key=key, key_type=kind)

        def look() -> set[int]:
            answers = [self._ask(node, request, 3) for node in sorted(self.live)]
            return {answer.node_id if answer.error_code == ErrorCode.NONE else -1 for answer in answers}

        (coordinator,) = self._until(look, self._is_one_live_node, f"a coordinator of {key}")
        return coordinator

    def wait_until_in_sync(self, *topics: str) -> None:
        """Return once every replica of every partition is in sync, as every live node has it.

        :param topics: those that must be known by then.
        """

        def look() -> list[str]:
            late = []
            for view in self._views():
                known = {topic.name for topic in view.topics}
                late += [f"{topic} unknown" for topic in {*topics, TRANSACTION_LOG} - known]
                late += [
                    f"{topic.name}-{entry.partition_index} at {sorted(entry.isr_nodes)}"
                    for topic in view.topics
                    for entry in topic.partitions
                    if set(entry.isr_nodes) != set(entry.replica_nodes) or entry.leader_id not in self.live
                ]
            return late

        self._until(look, lambda late: not late, "all replicas in sync")

    # --- leaders that move

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Reassign ``partition`` so that ``to`` is its first replica, and elect that."""
        order = [to, *(node for node in self.nodes if node != to)]
        admin = KafkaAdminClient(bootstrap_servers=[f"127.0.0.1:{self.ports[node]}" for node in sorted(self.live)])
        try:
            (refused,) = admin.alter_partition_reassignments({KafkaPythonPartition(topic, partition): order}).values()
            assert refused is None, refused
            self._until(
                lambda: [self._entry(view, topic, partition) for view in self._views()],
                lambda seen: all(entry is not None and list(entry.replica_nodes) == order for entry in seen),
                f"{topic}-{partition} at {order}",
            )
            admin.elect_leaders(ElectionType.PREFERRED, {topic: [partition]}, raise_errors=False)
        finally:
            admin.close()
        self._until(lambda: self.leader_of(topic, partition), lambda leader: leader == to, f"{topic} led by {to}")

    # --- asking

    def _views(self) -> list[Message]:
        """What each live node knows of the cluster."""
        return [self._ask(node, MetadataRequest(topics=None), 12) for node in sorted(self.live)]

    def _ask(self, node: int, request: Message, version: int) -> Message:
        with self.connect(node) as client:
            return client.ask(request, version)

    @staticmethod
    def _entry(view: Message, topic: str, partition: int) -> Message | None:
        entries = (entry for found in view.topics if found.name == topic for entry in found.partitions)
        return next((entry for entry in entries if entry.partition_index == partition), None)

    def _is_one_live_node(self, seen: set[int]) -> bool:
        return len(seen) == 1 and seen <= self.live

    def _require_running(self, node: int) -> None:
        """Fail if ``node`` has ended by itself. Another thread may kill it meanwhile, which it says before it does."""
        try:
            self._brokers[node].require_running()
        except AssertionError:
            if node in self.live:
                raise

    def _until(self, look: Callable[[], ResultT], holds: Callable[[ResultT], bool], what: str) -> ResultT:
        """What ``look`` sees once ``holds`` is true of it; a node that does not answer yet is asked again."""
        deadline = time.monotonic() + START_SECONDS
        seen: object = "no answer"
        while time.monotonic() < deadline:
            if self._has_controller:
                self._controller.require_running()
            for node in sorted(self.live):
                self._require_running(node)
            with suppress(OSError):
                seen = result = look()
                if holds(result):
                    return result
            time.sleep(_POLL_SECONDS)
        raise AssertionError(f"{what}: not in {START_SECONDS} s; the last that was seen: {seen}")
