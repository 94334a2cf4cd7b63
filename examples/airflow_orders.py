"""An Airflow DAG that places orders in a table and in a topic: once for each task instance, though it may run often.

    dualwrite db upgrade --db postgresql+psycopg://app@localhost/shop
    export DATABASE_URL=postgresql+psycopg://app@localhost/shop KAFKA=127.0.0.1:9092
    cp examples/airflow_orders.py $AIRFLOW_HOME/dags/
    airflow standalone
    airflow dags unpause airflow_orders
    airflow dags trigger airflow_orders --conf '{"orders": [{"number": "o-1", "quantity": 2}]}'

Airflow imports this file again and again, to see its tasks. So each attempt of a task makes a DualWrite of its own, and
closes it at its end, which gives the slot back.

Airflow runs a task again whose process was killed, or that a user clears. The first run may have committed just before.
So each unit of work inserts the task instance's key under a unique key, without the number of the attempt: a second run
finds the key, and does nothing.
"""

import logging
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.exc import IntegrityError

from dualwrite import DualWrite, Transaction, UnitCommitted

TOPIC = "airflow-orders"
POOL_SIZE = 4

metadata = MetaData()
done_task_instances = Table(
    "done_task_instances",
    metadata,
    Column("dag_id", String(250), primary_key=True),
    Column("task_id", String(250), primary_key=True),
    Column("run_id", String(250), primary_key=True),
    Column("map_index", Integer, primary_key=True, autoincrement=False),
)
orders = Table(
    "airflow_orders",
    metadata,
    Column("number", String(40), nullable=False),
    Column("quantity", Integer, nullable=False),
)


class PlacedAlreadyError(Exception):
    """A former run of the task instance has committed."""


def write_both(tx: Transaction, task_instance: dict[str, Any], order: dict[str, Any]) -> None:
    """One unit of work: the order in the table and in the topic, and the mark that the task instance is done."""
    try:
        tx.execute(insert(done_task_instances).values(task_instance))
    except IntegrityError as error:
        raise PlacedAlreadyError(task_instance) from error
    tx.execute(insert(orders).values(order))
    tx.produce(TOPIC, key=order["number"], value=str(order["quantity"]))


@task
def make_tables() -> None:
    """Before the first order."""
    metadata.create_all(create_engine(os.environ["DATABASE_URL"]))


@task
def requested_orders() -> list[dict[str, Any]]:
    """The orders of this run."""
    return list(get_current_context()["params"]["orders"])


@task(max_active_tis_per_dag=POOL_SIZE)
def place_order(order: dict[str, Any]) -> None:
    """Place one order; there is a task instance for each."""
    ti = get_current_context()["ti"]
    key = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": ti.map_index}
    engine = create_engine(os.environ["DATABASE_URL"])
    kafka = {"bootstrap.servers": os.environ["KAFKA"]}
    with DualWrite(engine, kafka, application="airflow-orders", pool_size=POOL_SIZE) as dual_write:
        try:
            dual_write.transactional(write_both)(key, order)
        except PlacedAlreadyError:
            logging.info("done already, in a former run")
        except UnitCommitted as error:  # the execution_timeout struck after the commit
            logging.info("done: %s", error)


@dag(
    schedule=None,
    params={"orders": [{"number": "o-1", "quantity": 2}, {"number": "o-2", "quantity": 1}]},
    default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
)
def airflow_orders() -> None:
    """The tables, then the orders."""
    place = place_order.expand(order=requested_orders())
    make_tables() >> place


airflow_orders()
