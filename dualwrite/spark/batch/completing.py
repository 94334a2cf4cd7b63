"""Completes decided transactions in Kafka, on Spark's driver. The decision stands, so nothing here may raise."""

import logging
import time
from collections.abc import Sequence

from dualwrite.spark.batch.runs import Runs
from dualwrite.spark.batch.task_input import Observe
from dualwrite.spark.workers import Worker

_LOG = logging.getLogger("dualwrite")

PATIENCE = 10.0
"""Seconds for which the driver retries to complete decided transactions in Kafka before it leaves them to other
processes. If the brokers do not answer, one attempt takes step_timeout()."""
_PAUSE = 0.2


def complete(
    worker: Worker, runs: Runs, observe: Observe, warning: str = "decided transactions are not complete in Kafka"
) -> None:
    """Commit or abort in Kafka, as decided, the transactions of this process's leases and of dead processes.

    :param observe: called before each attempt, if there is something to complete.
    :param warning: the message to log if that takes longer than PATIENCE.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        errors = _complete_once(worker, runs, observe)
        if not errors:
            return
        if time.monotonic() >= deadline:
            _LOG.warning("%s; recovery will end them later: %s", warning, errors[0])
            return
        time.sleep(_PAUSE)


def _complete_once(worker: Worker, runs: Runs, observe: Observe) -> Sequence[Exception]:
    try:
        left = runs.completable()
        if left:
            observe("COMPLETE_KAFKA")
        outcomes, errors = worker.branches.sweep_left(is_any_left=bool(left))
        return errors if set(left).difference(outcomes) else ()
    except Exception as error:  # noqa: BLE001 - see above
        return (error,)
