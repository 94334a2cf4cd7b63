"""DAGs that a trial appends to a copy of examples/airflow_orders.py, and its DualWrite that may be struck."""

APPENDED = '''

from tests.support.examples.airflow_strikes import StruckDualWrite as DualWrite

RETRIES = {"retries": 5, "retry_delay": timedelta(seconds=5)}


@dag(schedule=None, params={"orders": []}, default_args=RETRIES)
def limited_orders() -> None:
    """The orders, with a time limit for each."""
    place_order.override(execution_timeout=timedelta(seconds=10)).expand(order=requested_orders())


AT_IMPORT = DualWrite(
    create_engine(os.environ["DATABASE_URL"]),
    {"bootstrap.servers": os.environ["KAFKA"]},
    application="imported",
    pool_size=2,
)


@dag(schedule=None, params={"orders": []}, default_args=RETRIES)
def imported_orders() -> None:
    """The orders, by a DualWrite that is made when the file is imported and is never closed."""

    @task(max_active_tis_per_dag=2)
    def place_order(order: dict) -> None:
        ti = get_current_context()["ti"]
        key = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": ti.map_index}
        AT_IMPORT.transactional(write_both)(key, order)

    place_order.expand(order=requested_orders())


@dag(schedule=None, params={"orders": []}, default_args=RETRIES)
def external_orders() -> None:
    """The orders, placed by an interpreter without Airflow."""

    @task.external_python(python=os.environ["OTHER_PYTHON"], expect_airflow=False)
    def place_order(order: dict, key: dict) -> None:
        from tests.support.examples.struck_airflow import place

        place({**key, "map_index": int(key["map_index"])}, order)

    key = {name: "{{ ti." + name + " }}" for name in ("dag_id", "task_id", "run_id", "map_index")}
    place_order.partial(key=key).expand(order=requested_orders())


@dag(schedule=None, default_args=RETRIES)
def load_orders() -> None:
    """A file into a table and a topic."""

    @task.bash
    def load() -> str:
        return (
            'exec dualwrite load "$ORDERS_FILE" --db "$DATABASE_URL" --table loaded_orders --topic loaded-orders '
            '--key number --bootstrap-servers "$KAFKA" --batch-size 50'
        )

    load()


limited_orders()
imported_orders()
external_orders()
load_orders()
'''
