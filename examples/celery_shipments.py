"""A Celery task that stores a shipment and announces it in a topic, once for each task id, though it may run often.

    dualwrite db upgrade --db sqlite:///shipments.db
    export DATABASE_URL=sqlite:///shipments.db KAFKA=127.0.0.1:9092 CELERY_BROKER_URL=amqp://127.0.0.1
    celery --workdir examples --app celery_shipments worker --concurrency 2
    cd examples && python -c 'import celery_shipments; celery_shipments.announce.delay("o-1", 2)'

Each process of the prefork pool makes its DualWrite after the fork, and closes it when the pool ends the process, which
gives the slots back. If a process is killed, the others finish or roll back its unit of work.

``acks_late`` and ``reject_on_worker_lost`` let Celery run a task again whose process was killed. The first run may have
committed just before. So each unit of work inserts the task's id under a unique key: a second run finds it, and does
nothing. For the same reason every failure that may pass is retried here, even one that leaves the outcome in doubt.
"""

import os

from celery import Celery, Task
from celery.signals import worker_init, worker_process_init, worker_process_shutdown
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.exc import IntegrityError

from dualwrite import CommittedError, DualWrite, DualWriteError, InDoubtError, Transaction, transactional

TOPIC = "announced-shipments"

metadata = MetaData()
done_tasks = Table("done_tasks", metadata, Column("id", String(64), primary_key=True))
announced = Table(
    "announced_shipments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", String(40), nullable=False),
    Column("kilograms", Integer, nullable=False),
)

app = Celery("shipments", broker=os.environ.get("CELERY_BROKER_URL", "memory://"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


class PoolProcess:
    """What a process of the pool has: nothing before its fork."""

    engine: Engine
    dual_write: DualWrite | None = None


@worker_init.connect
def make_tables(**_: object) -> None:
    """Once, in the worker's main process, which keeps no connection: it is about to fork."""
    engine = create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)
    engine.dispose()


@worker_process_init.connect
def open_dual_write(**_: object) -> None:
    """In each process of the pool, when it begins."""
    PoolProcess.engine = create_engine(os.environ["DATABASE_URL"])
    # In an outage of Kafka, Celery retries the task, and the process is free for others after seconds.
    kafka = {"bootstrap.servers": os.environ["KAFKA"], "message.timeout.ms": "2000"}
    PoolProcess.dual_write = DualWrite(PoolProcess.engine, kafka, application="shipments", acquire_timeout=2)


@worker_process_shutdown.connect
def close_dual_write(**_: object) -> None:
    """In each process of the pool, when the pool ends it."""
    if PoolProcess.dual_write:
        PoolProcess.dual_write.close()
        PoolProcess.engine.dispose()


class DoneAlreadyError(Exception):
    """A former run of the task has committed."""


@transactional(lambda: PoolProcess.dual_write, retries=3)
def write_both(tx: Transaction, task_id: str, number: str, kilograms: int) -> None:
    """One unit of work: the shipment in the table and in the topic, and the mark that the task is done."""
    try:
        tx.execute(insert(done_tasks).values(id=task_id))
    except IntegrityError as error:
        raise DoneAlreadyError(task_id) from error
    tx.execute(insert(announced).values(number=number, kilograms=kilograms))
    tx.produce(TOPIC, key=number, value=f"{kilograms} kg")


@app.task(bind=True, max_retries=None)
def announce(self: Task, number: str, kilograms: int) -> str:
    """Announce a shipment; returns what happened, for the worker's log."""
    try:
        write_both(self.request.id, number, kilograms)
    except DoneAlreadyError:
        return "done already"
    except CommittedError as error:  # a time limit struck after the commit
        return f"done: {error}"
    except DualWriteError as error:
        if error.retriable or isinstance(error, InDoubtError):
            raise self.retry(exc=error, countdown=1) from error
        raise
    return "done"
