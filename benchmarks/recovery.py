"""How long the start of an application takes that has to recover a thousand transactions in doubt.

    python -m benchmarks.recovery [--databases sqlite postgresql] [--durabilities os fsync] [--rounds 3] [--warm-up 0]
                                  [--ids 1000] [--journal delete|wal] [--json FILE] [--markdown FILE] [--directory DIR]

Each transactional id has a transaction of one record that is prepared in Kafka, and a row in the state table whose
owner is gone. Half of the rows hold the state of that transaction: it was decided to be committed; those of the other
half do not, so it is to be aborted. What is timed is ``DualWrite.recover()`` of a new process' first DualWrite: taking
the slots over, ending every transaction, and giving the slots back. Afterwards a read_committed consumer must find the
records of the first half, and nothing else.
"""

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import count

from sqlalchemy import func, insert

from benchmarks.contenders import Contender, create_topic, processor_seconds
from benchmarks.figures import LOADS, Sample
from benchmarks.rounds import Rounds, WithKafka, at_least, measure, parser_of
from benchmarks.standings import Standings
from benchmarks.unit_places import DATABASES, JOURNALS, ReadyDatabase, committed_records, require_same
from dualwrite import DualWrite
from dualwrite.client import TwoPhaseProducer
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.sql.tables import kafka_transaction_state

FIGURE = "recovery"
_DEAD = "elsewhere:1 - - gone"
_numbers = count()


def leave_in_doubt(broker: Contender, database: ReadyDatabase, application: str, ids: int) -> list[str]:
    """What processes leave that died after prepare: those with an even number had committed in the database. Returns
    the records of these."""
    rows, decided = [], []
    for number in range(ids):
        name = slot_id(application, number)
        producer = TwoPhaseProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(application, name)
        state = producer.prepare_transaction()
        producer.close()  # ends no transaction
        is_decided = number % 2 == 0
        if is_decided:
            decided.append(name)
        rows.append({"transactional_id": name, "prepared_txn_state": str(state) if is_decided else ""})
    others = {"fencing_token": 1, "owner": _DEAD, "updated_at": func.current_timestamp()}
    with database.engine.begin() as connection:
        connection.execute(insert(kafka_transaction_state).values(others), rows)
    return decided


def recover(broker: Contender, database: ReadyDatabase, ids: int) -> Sample:
    """One recovery.

    :raises SystemExit: if it did anything but what the rows say.
    """
    application = f"recovery_{next(_numbers)}"
    create_topic(broker.bootstrap, application, 1)
    decided = leave_in_doubt(broker, database, application, ids)
    busy, cpu = processor_seconds(broker), time.process_time()
    with DualWrite(database.engine, {"bootstrap.servers": broker.bootstrap}, application=application) as dual_write:
        began = time.monotonic()
        found = dual_write.recover()
        took = time.monotonic() - began
        loads = (processor_seconds(broker) - busy, time.process_time() - cpu)
    outcomes = Counter(found.values())
    if outcomes != {Outcome.COMMITTED: len(decided), Outcome.ABORTED: ids - len(decided)}:
        raise SystemExit(f"recovery on {database.title} found {dict(outcomes)}")
    records = committed_records(broker.bootstrap, application, len(decided))
    require_same(decided, records, f"recovery on {database.title}")
    return {"s": took, **dict(zip(LOADS, (load / took for load in loads), strict=True))}


def compare_all(options: Namespace, rounds: Rounds) -> Iterator[Standings]:
    """At one durability after the other, on one database after the other."""
    for durability in options.durabilities:
        samples: dict[str, list[Sample]] = {}
        with rounds.running(rounds.contenders(durability)) as brokers:
            for name in options.databases:
                with DATABASES[name](rounds.directory, options.journal) as database:
                    for number in range(-rounds.warm_up, rounds.count):
                        sample = recover(brokers[0], database, options.ids)
                        if number >= 0:
                            samples.setdefault(database.title, []).append(sample)
        yield Standings(f"recovery of {options.ids:,} transactional ids", durability, samples)


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n")[0], [FIGURE], warm_up=0, kafka=WithKafka.NEVER)
    parser.set_defaults(durabilities=["os"], rounds=3)
    parser.add_argument("--databases", nargs="+", choices=list(DATABASES), default=list(DATABASES))
    parser.add_argument("--ids", type=at_least(2), default=1000)
    parser.add_argument("--journal", choices=JOURNALS, default=JOURNALS[0], help="SQLite's")
    options = parser.parse_args()
    measure(options, lambda rounds: compare_all(options, rounds))


if __name__ == "__main__":
    main()
