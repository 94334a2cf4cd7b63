"""Transactions that are decided and not finished: a running broker and a start finish them, and no request asks."""

from pathlib import Path

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts.transaction_log import decode_fact, encode_fact
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, iterate_records
from dualwrite.records.header import iterate_batches
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import describe, end, new_producer, new_topic, open_transaction, read_all, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

JOURNAL = "__transaction_state-0"


def recorded(data_dir: Path) -> list[TransactionRecorded]:
    """The facts about transactions in the journal's file, in their order."""
    (log,) = (data_dir / JOURNAL).glob("*.log")
    facts = (
        decode_fact(record.key or b"", record.value)
        for _, batch in iterate_batches(log.read_bytes())
        for record in iterate_records(batch)
    )
    return [fact for fact in facts if isinstance(fact, TransactionRecorded)]


def test_the_end_of_a_transaction_gets_into_the_log_although_no_request_follows(broker: EmbeddedBroker) -> None:
    """It waits for another fact, for a tenth of a second at most: a reader of the log sees a transaction that ended."""
    with RawClient(broker.bootstrap_servers) as client:
        topic, name = new_topic(client), unique("transaction")
        producer = new_producer(client, name)
        open_transaction(client, name, producer, {(topic, 0): [b"v"]})
        assert end(client, name, producer).error_code == ErrorCode.NONE
        ended = TransactionStatus.COMPLETE_COMMIT
        assert eventually(lambda: recorded(broker.data_dir)[-1].status, lambda status: status is ended) is ended


def test_a_start_finishes_the_transaction_that_was_decided_before(broker: EmbeddedBroker) -> None:
    """A kill between the decision and the markers leaves a log like this one."""
    with RawClient(broker.bootstrap_servers) as client:
        topic, name = new_topic(client), unique("transaction")
        producer = new_producer(client, name)
        open_transaction(client, name, producer, {(topic, 0): [b"v"]})
    broker.stop()
    decided = recorded(broker.data_dir)[-1]._replace(
        status=TransactionStatus.PREPARE_COMMIT,
        producer=ProducerIdentity(producer.producer_id, producer.epoch + 1),
        previous=producer,
    )
    journal = Journal.open(DiskFiles(), broker.data_dir / JOURNAL, lambda record: None)
    journal.append([Record(*encode_fact(decided))])
    journal.log.close()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert read_all(client, topic) == [b"v"]
        assert describe(client, name).transaction_state == "CompleteCommit"
