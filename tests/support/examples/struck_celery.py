"""examples/celery_shipments.py on a broker of files, with a pool whose processes may be struck.

A process is struck in the middle of the unit of work of a task (``within-NUMBER``), or after the unit has committed and
before Celery hears of that (``behind-NUMBER``).
"""

import os
from typing import Any

from celery.signals import task_success

from examples.celery_shipments import app
from tests.support.examples.celery_worker import BROKER_URL, FOLDER, broker_options
from tests.support.examples.strikes import strike, strike_after_inserts


@task_success.connect
def succeeded(sender: Any, **_: Any) -> None:
    """In the pool's process, when the task has returned."""
    strike(f"behind-{sender.request.args[0]}")


app.conf.update(
    broker_url=BROKER_URL,
    broker_transport_options=broker_options(os.environ[FOLDER]),
    worker_prefetch_multiplier=10,  # a worker that has no task left looks at the files once in two seconds
)
strike_after_inserts("announced_shipments", "within")
