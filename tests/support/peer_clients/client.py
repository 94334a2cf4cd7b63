"""The interface of a Kafka client: the cases of this folder are written once, against it.

Every client of :data:`tests.peer_clients.conftest.CLIENTS` has an adapter with these methods. What one of them cannot
do is missing from its ``can``; a case says what it ``needs``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

Place = tuple[str, int]
"""A partition: topic and index."""

Headers = Sequence[tuple[str, bytes | None]]

TRANSACTIONS = "transactions"
COOPERATIVE = "cooperative rebalancing"
STATIC_MEMBERS = "static members"
FENCED_BY_MEMBER = "group metadata in transactions"
ASYNC_COMMIT = "asynchronous commits"
GROUP_DELETION = "deleting groups"
OFFSET_ALTERATION = "altering offsets"
OFFSET_DELETION = "deleting offsets"
ADMIN_OFFSETS = "asking for offsets as an administrator"
VALIDATION = "validating without doing"


class Got(NamedTuple):
    """A record, as a consumer got it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int

    @property
    def place(self) -> Place:
        """Where it was."""
        return self.topic, self.partition


class RefusedError(Exception):
    """The broker refused; ``args[0]`` is Kafka's name of the error."""


class Sender(Protocol):
    """A producer."""

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
        """Hand a record over."""

    def flush(self) -> list[tuple[int, int]]:
        """Partition and offset of every record since the last flush, in the order sent.

        :raises RefusedError: if one was not taken.
        """

    def init_transactions(self) -> None:
        """Fence others of the same transactional id."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit it."""

    def abort(self) -> None:
        """Abort it."""

    def send_offsets(self, positions: Mapping[Place, int], group: "Receiver") -> None:
        """Commit ``positions`` of the group that ``group`` belongs to with the transaction."""

    def close(self) -> None:
        """Let go of everything."""


class Receiver(Protocol):
    """A consumer."""

    def assign(self, places: Iterable[Place]) -> None:
        """Read these partitions."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group for these topics."""

    def assignment(self) -> set[Place]:
        """What it reads now."""

    def poll(self, seconds: float = 0.1) -> list[Got]:
        """What has come; waits at most ``seconds`` for something."""

    def seek(self, place: Place, offset: int) -> None:
        """Go on from ``offset``."""

    def position(self, place: Place) -> int:
        """The offset of the next record."""

    def pause(self, place: Place) -> None:
        """Read no more there."""

    def resume(self, place: Place) -> None:
        """Read on there."""

    def commit(self, positions: Mapping[Place, int] | None = None) -> None:
        """Commit ``positions``, or where it is, and wait for the answer."""

    def commit_async(self, positions: Mapping[Place, int]) -> None:
        """Commit without waiting."""

    def committed(self, place: Place) -> int | None:
        """The group's committed offset."""

    def watermarks(self, place: Place) -> tuple[int, int]:
        """Beginning and end."""

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        """The first record that is not older than ``timestamp``; None without one."""

    def close(self) -> None:
        """Leave the group."""


class Administrator(Protocol):
    """An admin client."""

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        """Create a topic, and wait until it is there."""

    def delete_topic(self, name: str) -> None:
        """Delete it."""

    def topics(self) -> set[str]:
        """The names of all topics."""

    def partitions(self, topic: str) -> int:
        """How many it has."""

    def create_partitions(self, topic: str, total: int) -> None:
        """Give it more."""

    def topic_config(self, topic: str) -> dict[str, str | None]:
        """Its settings."""

    def broker_config(self) -> dict[str, str | None]:
        """The broker's settings."""

    def alter_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Change settings."""

    def delete_records(self, place: Place, before: int) -> int:
        """Delete the records before an offset; the new beginning."""

    def groups(self) -> set[str]:
        """The names of all groups."""

    def group_state(self, group: str) -> str:
        """The state of a group."""

    def group_members(self, group: str) -> int:
        """How many members it has."""

    def group_offsets(self, group: str) -> dict[Place, int]:
        """Its committed offsets."""

    def alter_group_offsets(self, group: str, positions: Mapping[Place, int]) -> None:
        """Change them."""

    def delete_group_offsets(self, group: str, places: Iterable[Place]) -> None:
        """Forget some of them."""

    def delete_group(self, group: str) -> None:
        """Delete it."""

    def latest_offset(self, place: Place) -> int:
        """The end of a partition."""

    def close(self) -> None:
        """Let go of everything."""


class Client(Protocol):
    """Makes the three."""

    name: str
    can: frozenset[str]

    def producer(
        self,
        servers: str,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str | None = None,
        linger_ms: int = 0,
        largest: int = 1_000_000,
    ) -> Sender:
        """A producer."""

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
    ) -> Receiver:
        """A consumer that commits only by an explicit call."""

    def admin(self, servers: str) -> Administrator:
        """An admin client."""
