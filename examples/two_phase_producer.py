"""Two-phase commit by hand: Kafka together with a store that is no SQL database, here a JSON file.

The file is replaced in one step, and that is the decision: what is in it has happened. Beside its own content it keeps
the name of the Kafka transaction that belongs to it, so that a program that starts after a crash ends that transaction
the same way. Usage: ``python two_phase_producer.py HOST:PORT FILE ITEM…``; the broker must have KIP-939.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from dualwrite import PreparedTxnState, TransactionResult, TwoPhaseProducer

TOPIC = "orders"


class Ledger:
    """Orders in a file, and the transaction of the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Any]:
        """What is in the file: ``items``, and ``transaction`` as str() writes a PreparedTxnState."""
        if not self._path.exists():
            return {"items": [], "transaction": ""}
        content: dict[str, Any] = json.loads(self._path.read_text())
        return content

    def save(self, content: dict[str, Any]) -> None:
        """Replace the file: after a crash it has the old content or the new one, whole."""
        fresh = self._path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def recover(producer: TwoPhaseProducer, ledger: Ledger) -> TransactionResult:
    """End what the last run left in Kafka: committed if the ledger has it, aborted if not."""
    producer.init_transactions(keep_prepared_txn=True)
    ended = producer.complete_transaction(PreparedTxnState.parse(ledger.load()["transaction"]))
    producer.init_transactions()
    return ended


def place_order(producer: TwoPhaseProducer, ledger: Ledger, item: str) -> None:
    """Put ``item`` into the ledger and into the topic, or into neither."""
    producer.begin_transaction()
    try:
        producer.produce(TOPIC, key=item, value="one cup")
        state = producer.prepare_transaction()  # every record is acknowledged now, and none is visible
    except BaseException:
        producer.abort_transaction()
        raise
    content = ledger.load()
    ledger.save({"items": [*content["items"], item], "transaction": str(state)})  # the decision
    producer.commit_transaction()


def main(bootstrap_servers: str, path: Path, items: list[str]) -> None:
    """Recover, then place the orders."""
    ledger = Ledger(path)
    with TwoPhaseProducer({"bootstrap.servers": bootstrap_servers, "transactional.id": "orders-by-hand"}) as producer:
        print(f"left by the last run: {recover(producer, ledger).value}")
        for item in items:
            place_order(producer, ledger, item)
    print(f"in the ledger: {', '.join(ledger.load()['items'])}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT FILE ITEM…")
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
