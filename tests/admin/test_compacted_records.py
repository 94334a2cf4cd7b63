"""Random transactions in a compacted topic: whatever compaction has left, each record has the state that it was given,
and those that are visible are those of a read_committed consumer."""

import random
from collections.abc import Iterator
from itertools import count

import pytest

from dualwrite.admin.records import read_records
from dualwrite.client.terms.record_states import RecordState
from dualwrite.testing.kafka import KafkaBroker
from tests.support.admin.admin_site import AdminSite, TransactionProducer
from tests.support.waiting import eventually

KEYS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    config = {"log.cleaner.backoff.ms": "20"}
    with KafkaBroker(tmp_path_factory.mktemp("compacting"), config=config) as running:
        yield running


class CompactedHistory:
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
                assert producer.producer.flush(30) == 0
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


@pytest.mark.slow_cases
@pytest.mark.parametrize("seed", range(4))
def test_compaction_changes_no_state(site: AdminSite, broker: KafkaBroker, seed: int) -> None:
    history = CompactedHistory(site, seed)

    def left() -> dict[str, RecordState]:
        every = read_records(site.config, history.topic, committed=False)
        found = {(record.value or b"").decode(): record.state for record in every}
        assert found == {value: history.states[value] for value in found}
        return found

    def sides() -> tuple[list[object], list[object]]:
        ours = [(record.offset, record.value) for record in read_records(site.config, history.topic)]
        return ours, [(record.offset, record.value) for record in broker.read(history.topic)]

    for _ in range(4):
        history.go_on(12)
        left()
        ours, theirs = eventually(sides, lambda both: both[0] == both[1])  # compaction may go on between the two reads
        assert ours == theirs
    history.end()
    assert len(eventually(left, lambda found: len(found) < len(history.states) / 2)) < len(history.states) / 2
    ours, theirs = eventually(sides, lambda both: both[0] == both[1])
    assert ours == theirs
