"""``python -m tests.support.examples.struck_airflow RUN NUMBER``: one attempt of a task of examples/airflow_orders.py.

It needs no Airflow: a module of this file's own takes the place of ``airflow.sdk``. The attempt may be struck or held
(airflow_strikes.py), and SIGALRM raises a time limit in it, as Airflow's execution_timeout does.
"""

import importlib
import logging
import signal
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from tests.support.examples.airflow_strikes import StruckDualWrite


class TaskTimeoutError(BaseException):
    """Airflow's is no Exception either."""


class Decorated:
    """What ``@task`` and ``@dag`` make of a function."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        self.function = function
        self.options = options

    def __call__(self) -> None:
        """Airflow would make a task, or a DAG."""


def load_example(key: dict[str, Any]) -> Any:
    """The example's module, whose tasks run with this key."""

    def decorator(*functions: Any, **options: Any) -> Any:
        return Decorated(*functions, options) if functions else lambda function: Decorated(function, options)

    sdk = ModuleType("airflow.sdk")
    sdk.__dict__.update(task=decorator, dag=decorator)
    sdk.__dict__["get_current_context"] = lambda: {"ti": SimpleNamespace(**key)}
    sys.modules.update({"airflow": ModuleType("airflow"), "airflow.sdk": sdk})
    return importlib.import_module("examples.airflow_orders")


def raise_limit(*_: object) -> NoReturn:
    """The handler of SIGALRM."""
    raise TaskTimeoutError


def place(key: dict[str, Any], order: dict[str, Any]) -> None:
    """One attempt of the task instance with this key."""
    logging.basicConfig(level=logging.INFO)
    example = load_example(key)
    example.DualWrite = StruckDualWrite
    assert example.airflow_orders.options["default_args"]["retries"] == 3
    assert example.place_order.options["max_active_tis_per_dag"] == example.POOL_SIZE
    example.make_tables.function()
    example.place_order.function(order)


def main(run: str, number: str) -> None:
    """One attempt to place the order of this number."""
    signal.signal(signal.SIGALRM, raise_limit)
    key = {"dag_id": "airflow_orders", "task_id": "place_order", "run_id": run, "map_index": 0}
    place(key, {"number": number, "quantity": 2})


if __name__ == "__main__":
    main(*sys.argv[1:])
