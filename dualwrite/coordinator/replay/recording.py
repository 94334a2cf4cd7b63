"""The records of a unit of work that the database keeps for a replay: noted while produced, then stored as rows.

``replay.py`` says when they are written, and why.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Row

from dualwrite.coordinator.ports.kafka import (
    KafkaParticipant,
    has_committed,
    name_of_left_transaction,
    name_of_open_transaction,
)
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import ConfigurationError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import Headers, OutgoingRecord
from dualwrite.records.varint import decode_varint, encode_varint


@dataclass(slots=True)
class KeptRecord:
    """One record, as it was produced the first time.

    :param partition: -1 until it is known.
    """

    record: OutgoingRecord
    partition: int
    timestamp: int

    def columns(self) -> dict[str, Any]:
        """The record as a row of ``kafka_transaction_record``, without the transaction that it belongs to."""
        topic, value, key, _, _, headers, _ = self.record
        return {
            "topic": topic,
            "partition": self.partition,
            "record_key": key,
            "record_value": value,
            "headers": packed_headers(headers) if headers else None,
            "record_timestamp": self.timestamp,
        }


def kept_record(row: Row[Any]) -> OutgoingRecord:
    """The record that a row of ``kafka_transaction_record`` keeps."""
    headers = unpacked_headers(row.headers) if row.headers else ()
    return OutgoingRecord(row.topic, row.record_value, row.record_key, row.partition, row.record_timestamp, headers)


class RecordKeeper:
    """The records of the units of work in progress in this process, by transactional id.

    A slot is used by one unit at a time, so each list has one writer.

    :param config: of the Kafka side.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        callbacks = (config.get(name) for name in ("on_delivery", "dr_cb"))
        self._on_delivery = next((callback for callback in callbacks if callback is not None), None)
        self._records: dict[str, list[KeptRecord]] = {}
        self.reserved: dict[str, int] = {}
        """By transactional id, the numbers below this one are of records that are still to be replayed."""
        self.empty: set[str] = set()
        """Transactional ids for which the database is known to keep no records. They need no DELETE: in InnoDB a DELETE
        that finds no row locks a gap, in which the INSERT of another slot waits; two such units deadlock."""

    def reserve(self, transactional_id: str, numbers: Iterable[int]) -> None:
        """Keep the stored records with ``numbers``, and all before them, in the database until the next call."""
        self.reserved[transactional_id] = max(numbers, default=-1) + 1

    def begin(self, transactional_id: str) -> list[KeptRecord]:
        """The list for a new transaction."""
        self._records[transactional_id] = []
        return self._records[transactional_id]

    def of(self, transactional_id: str) -> Sequence[KeptRecord]:
        """The records of the transaction in progress, or of the last one."""
        return self._records.get(transactional_id, [])

    def watching(self, make: Callable[[str], KafkaParticipant]) -> Callable[[str], KafkaParticipant]:
        """``make``, so that what its participants produce is noted here."""
        return lambda transactional_id: RecordingParticipant(
            make(transactional_id), transactional_id, self, self._on_delivery
        )


class RecordingParticipant:
    """A KafkaParticipant that notes the records that it produces.

    :param inner: does everything else.
    :param on_delivery: the callback of ``inner`` for records without their own.
    """

    def __init__(
        self,
        inner: KafkaParticipant,
        transactional_id: str,
        keeper: RecordKeeper,
        on_delivery: Callable[[Any, Any], None] | None,
    ) -> None:
        self._inner = inner
        self._transactional_id = transactional_id
        self._keeper = keeper
        self._on_delivery = on_delivery
        self._records: list[KeptRecord] = []

    @property
    def is_reusable(self) -> bool:
        """See KafkaParticipant."""
        return self._inner.is_reusable

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id; see KafkaParticipant."""
        self._inner.init_transactions(keep_prepared_txn)

    def name_left_transaction(self) -> PreparedTxnState:
        """Name the transaction that was left open; see NamesLeftTransaction."""
        return name_of_left_transaction(self._inner)

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if Kafka has committed the transaction of ``state``; see LooksUpCommits."""
        return has_committed(self._inner, state)

    def begin_transaction(self) -> None:
        """Begin a transaction, without a request; see KafkaParticipant."""
        self._inner.begin_transaction()
        self._records = self._keeper.begin(self._transactional_id)

    def produce(self, record: OutgoingRecord) -> None:
        """See KafkaParticipant. Gives a record a timestamp, so that it has the same one if it is produced again."""
        callback = self._on_delivery if record.on_delivery is None else record.on_delivery
        timestamp = record.timestamp or time.time_ns() // 1_000_000
        kept = KeptRecord(record, record.partition, timestamp)

        def report(error: Any, message: Any) -> None:
            if error is None:
                kept.partition = message.partition()
            if callback is not None:
                callback(error, message)

        records = self._records
        records.append(kept)  # first: a callback may come, and produce, before produce() returns
        try:
            self._inner.produce(record._replace(timestamp=timestamp, on_delivery=report))
        except BaseException:
            records[:] = [other for other in records if other is not kept]
            raise

    def send_offsets_to_transaction(self, positions: Any, group_metadata: Any) -> NoReturn:
        """Refuse: a timeout would roll the offsets back, and the group would read records again that the database has.

        :raises ConfigurationError: always. The unit of work is as it was.
        """
        raise ConfigurationError(
            "offsets in the Kafka transaction: not with replay=True, as a timeout would take them back; keep them in "
            "the database (tx.store_offsets)"
        )

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction; see NamesOpenTransaction."""
        return name_of_open_transaction(self._inner)

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and require every acknowledgement; see KafkaParticipant."""
        return self._inner.prepare_transaction()

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""
        return self._inner.complete_transaction(state)

    def commit_transaction(self) -> None:
        """Commit the transaction; see KafkaParticipant."""
        self._inner.commit_transaction()

    def abort_transaction(self) -> None:
        """Abort the transaction; see KafkaParticipant."""
        self._inner.abort_transaction()

    def close(self) -> None:
        """Release sockets and threads; see KafkaParticipant."""
        self._inner.close()


def packed_headers(headers: Headers) -> bytes:
    """Headers as a record of the message format v2 has them, without their number."""
    parts = []
    for name, content in headers:
        data = name.encode()
        parts += [
            encode_varint(len(data)),
            data,
            encode_varint(-1 if content is None else len(content)),
            content or b"",
        ]
    return b"".join(parts)


def unpacked_headers(packed: bytes) -> Headers:
    """The headers that :func:`packed_headers` packed."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(packed):
        size, at = decode_varint(packed, at)
        name, at = packed[at : at + size].decode(), at + size
        size, at = decode_varint(packed, at)
        headers.append((name, None if size < 0 else packed[at : at + size]))
        at += max(size, 0)
    return headers
