"""Random transactions in one partition: what is read agrees with librdkafka's consumer and with what was done."""

import random
from itertools import count

import pytest

from dualwrite.admin import records as module
from dualwrite.admin.records import read_records
from dualwrite.client.terms.record_states import RecordState
from dualwrite.testing.kafka import KafkaBroker
from tests.support.admin.admin_site import AdminSite, TransactionProducer


class RandomHistory:
    """Three producers with transactions, and records without one, in an order that ``seed`` decides."""

    def __init__(self, site: AdminSite, topic: str, seed: int) -> None:
        self.states: dict[str, RecordState] = {}
        self._site = site
        self._topic = topic
        self._random = random.Random(seed)
        self._producers = [site.producer() for _ in range(3)]
        self._open: dict[TransactionProducer, list[str]] = {}
        self._names = map(str, count())

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            producer = self._random.choice(self._producers)
            if producer in self._open:
                self._end(producer)
            elif self._random.random() < 0.3:
                name = next(self._names)
                self._site.plain(self._topic, name)
                self.states[name] = RecordState.PLAIN
            else:
                names = [next(self._names) for _ in range(self._random.randint(1, 3))]
                producer.write(self._topic, *names)
                self._open[producer] = names
                self.states |= dict.fromkeys(names, RecordState.OPEN)

    def _end(self, producer: TransactionProducer) -> None:
        commits = self._random.random() < 0.5
        producer.commit() if commits else producer.abort()
        state = RecordState.COMMITTED if commits else RecordState.ABORTED
        self.states |= dict.fromkeys(self._open.pop(producer), state)


@pytest.mark.slow_cases
@pytest.mark.parametrize("seed", range(5))
def test_every_record_has_the_state_that_it_was_given(
    site: AdminSite, broker: KafkaBroker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.topic()
    history = RandomHistory(site, topic, seed)
    monkeypatch.setattr(module, "PIECE_BYTES", 200)  # several pieces
    for _ in range(4):
        history.go_on(8)
        every = list(read_records(site.config, topic, committed=False, markers=True))
        shown = {(record.key or b"").decode(): record.state for record in every if not record.state.is_marker}
        assert shown == history.states
        assert [record.offset for record in every] == list(range(len(every))), "each offset is there, once"
        committed = [(record.offset, record.key) for record in read_records(site.config, topic)]
        assert committed == [(record.offset, record.key) for record in broker.read(topic)]
        assert committed == [(record.offset, record.key) for record in every if record.is_visible]
        begin = random.Random(seed).randrange(len(every))
        from_there = read_records(site.config, topic, committed=False, markers=True, start=begin)
        assert list(from_there) == every[begin:]
