"""The broker's periodic tasks: what they do although no request waits for it."""

from pathlib import Path

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts.transaction_log import decode_fact
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.records.batch import iterate_records
from dualwrite.records.header import iterate_batches
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import end, new_producer, new_topic, open_transaction, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually


def statuses(data_dir: Path) -> list[TransactionStatus]:
    """The statuses of transactions in the journal's file, in their order."""
    (log,) = (data_dir / "__transaction_state-0").glob("*.log")
    facts = (
        decode_fact(record.key or b"", record.value)
        for _, batch in iterate_batches(log.read_bytes())
        for record in iterate_records(batch)
    )
    return [fact.status for fact in facts if isinstance(fact, TransactionRecorded)]


def test_the_end_of_a_transaction_gets_into_the_log_although_no_request_follows(broker: EmbeddedBroker) -> None:
    """It waits for another fact, for a tenth of a second at most: a reader of the log sees a transaction that ended."""
    with RawClient(broker.bootstrap_servers) as client:
        topic, name = new_topic(client), unique("transaction")
        producer = new_producer(client, name)
        open_transaction(client, name, producer, {(topic, 0): [b"v"]})
        assert end(client, name, producer).error_code == ErrorCode.NONE
        ended = TransactionStatus.COMPLETE_COMMIT
        assert eventually(lambda: statuses(broker.data_dir)[-1], lambda status: status is ended) is ended
