"""A partition whose transactions' ends are known, and what Fetch answers about it."""

from dataclasses import dataclass, field

from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, place_records
from dualwrite.records.control import Marker, place_marker
from dualwrite.records.header import BatchFields


@dataclass
class OneRecordLog:
    """A partition of which every batch is one record long."""

    end: int = 0
    content: list[tuple[int, bytes]] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker)"""

    def record(self, producer: ProducerIdentity, transactional: bool = True) -> int:
        if transactional:
            self.started.setdefault(producer.producer_id, self.end)
        fields = BatchFields(producer, base_sequence=0, transactional=transactional)
        return self._append(place_records(self.end, [Record(None, b"a", 0)], fields)[1])

    def marker(self, kind: Marker, producer: ProducerIdentity) -> None:
        first = self.started.pop(producer.producer_id, None)
        if kind is Marker.ABORT and first is not None:
            self.aborted.append((producer.producer_id, first, self.end))
        self._append(place_marker(self.end, kind, producer, 0, 0)[1])

    def _append(self, batch: bytes) -> int:
        self.content.append((self.end, batch))
        self.end += 1
        return self.end - 1

    def read(self, offset: int, before: int | None = None) -> LogSlice:
        """What Fetch answers: aborted transactions that overlap what is returned, as Kafka chooses them."""
        before = self.end if before is None else before
        records = b"".join(batch for at, batch in self.content if offset <= at < before)
        aborted = tuple((who, first) for who, first, last in self.aborted if last >= offset and first < before)
        return LogSlice(self.end, min(self.started.values(), default=self.end), aborted, records)
