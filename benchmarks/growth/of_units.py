"""Units of work against the number of their records, and an application against the number of its slots."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from sqlalchemy import func, insert

from benchmarks.contenders import create_topic
from benchmarks.figures import Sample
from benchmarks.growth.of_broker import GrowthSite
from benchmarks.processes import started
from benchmarks.unit_places import DATABASES, JOURNALS, ReadyDatabase
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.sql.tables import kafka_transaction_state

_CLIENTS = "benchmarks.growth.clients"
_DEAD = "elsewhere:1 - - gone"
_numbers = count()


def records(site: GrowthSite, size: int) -> Sample:
    """Units of one row and so many records of 200 bytes, by the native producer."""
    with _application(site, "sqlite") as settings:
        return _result("records", {**settings, "records": size})


def slots(site: GrowthSite, size: int) -> Sample:
    """An application of so many slots: the recovery of all of them, whose owners are gone, and then units while the
    process holds all of them."""
    with _application(site, "postgresql") as settings:
        return _result("slots", {**settings, "slots": size})


@contextmanager
def _application(site: GrowthSite, kind: str) -> Iterator[dict[str, object]]:
    """A broker, a database and a topic, for one application."""
    name = f"growth_{next(_numbers)}"
    broker = site.broker(name)
    broker.start()
    try:
        with DATABASES[kind](site.directory, JOURNALS[0]) as database, database.tables(name):
            create_topic(broker.bootstrap, name, 1)
            yield {"url": database.url, "bootstrap": broker.bootstrap, "name": name, "broker_pid": broker.pid}
    finally:
        broker.kill()


def leave_rows(database: ReadyDatabase, application: str, slots: int) -> None:
    """The rows of so many slots, whose owners are gone."""
    rows = [{"transactional_id": slot_id(application, number), "prepared_txn_state": ""} for number in range(slots)]
    others = {"fencing_token": 1, "owner": _DEAD, "updated_at": func.current_timestamp()}
    with database.engine.begin() as connection:
        connection.execute(insert(kafka_transaction_state).values(others), rows)


def _result(workload: str, settings: Mapping[str, object]) -> Sample:
    """What a process of its own measures."""
    with started(_CLIENTS, [(workload, settings)]) as (client,):
        client.say("go")
        result = client.result()
    return dict(result["sample"])
