"""Random transactions in a compacted topic."""

import random
from collections.abc import Mapping
from itertools import count

from dualwrite.admin.records import read_records
from dualwrite.client.terms.record_states import RecordState
from tests.support.admin.admin_site import AdminSite, TransactionProducer
from tests.support.peer_clients.kafka_helpers import PATIENCE, visible
from tests.support.waiting import eventually

KEYS = 3


class CompactedTransactions:
    """Producers with transactions, and records without one, of few keys; values are unique."""

    def __init__(self, site: AdminSite, seed: int) -> None:
        self.topic = site.topic(
            cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
        )
        self.states: dict[str, RecordState] = {}
        self._site = site
        self._random = random.Random(seed)
        self._producers = [site.producer() for _ in range(3)]
        self._open: dict[TransactionProducer, list[str]] = {}
        self._values = (f"v{number}" for number in count())

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            producer = self._random.choice(self._producers)
            if producer in self._open:
                commits = self._random.random() < 0.5
                producer.commit() if commits else producer.abort()
                state = RecordState.COMMITTED if commits else RecordState.ABORTED
                self.states |= dict.fromkeys(self._open.pop(producer), state)
            elif self._random.random() < 0.3:
                value = next(self._values)
                self._site.plain(self.topic, self._key(), value=value)
                self.states[value] = RecordState.PLAIN
            else:
                producer.producer.begin_transaction()
                values = [next(self._values) for _ in range(self._random.randint(1, 3))]
                for value in values:
                    producer.producer.produce(self.topic, key=self._key(), value=value)
                assert producer.producer.flush(PATIENCE) == 0
                self._open[producer] = values
                self.states |= dict.fromkeys(values, RecordState.OPEN)

    def _key(self) -> str:
        return str(self._random.randrange(KEYS))

    def end(self) -> None:
        """End what is open, so that compaction is held back no more."""
        for producer in list(self._open):
            producer.commit()
            self.states |= dict.fromkeys(self._open.pop(producer), RecordState.COMMITTED)
        self._site.plain(self.topic, "last", value="last")  # in the segment that compaction leaves alone
        self.states["last"] = RecordState.PLAIN

    def left(self) -> dict[str, RecordState]:
        """The records that compaction has left so far, in the states that they are shown in, which must be those that
        they were given."""
        found = eventually(self._found, self._has_markers)
        assert found == {value: self.states[value] for value in found}
        return found

    def _found(self) -> dict[str, RecordState]:
        every = read_records(self._site.config, self.topic, committed=False)
        return {(record.value or b"").decode(): record.state for record in every}

    def _has_markers(self, found: Mapping[str, RecordState]) -> bool:
        """Apache Kafka writes a transaction's markers after it has answered EndTxn."""
        return all(self.states[value] is state for value, state in found.items() if state is RecordState.OPEN)

    def sides(self) -> tuple[list[bytes | None], list[bytes]]:
        """The values that are shown as visible, and those that a read_committed consumer gets."""
        ours = [record.value for record in read_records(self._site.config, self.topic)]
        return ours, visible(self._site.config["bootstrap.servers"], self.topic)

    def check(self) -> None:
        """Go through a history, and compare both sides until compaction has removed most of it."""
        for _ in range(4):
            self.go_on(12)
            self.left()
            ours, theirs = eventually(self.sides, lambda both: both[0] == both[1])  # compaction goes on in between
            assert ours == theirs
        self.end()
        most = len(self.states) // 2
        assert len(eventually(self.left, lambda found: len(found) < most)) < most
        ours, theirs = eventually(self.sides, lambda both: both[0] == both[1])
        assert ours == theirs
