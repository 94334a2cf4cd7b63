"""What the driver of a whole batch does by itself, without Spark: all tasks run here, one after the other.

A driver that is killed is a process of its own: :func:`leave`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.spark.batch.write_batch import recover_job
from dualwrite.spark.plan.options import options_of

_FIELDS = {
    "key": "string",
    "id": "long",
    "customer": "string",
    "amount": "decimal(12,2)",
    "placed_at": "timestamp",
    "note": "string",
}
_SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _FIELDS.items()],
}
"""Of spark_places.Site.frame, as Spark says it."""

Seconds = dict[str, float]


def commit_seconds(options: Mapping[str, Any], partitions: int) -> Seconds:
    """The decision about ``partitions`` transactions, and their completion."""
    began: dict[str, float] = {}

    def observe(step: str) -> None:
        began.setdefault(step, time.monotonic())

    _commit(options, partitions, observe)
    ended = time.monotonic()
    completed = began["COMPLETE_KAFKA"]
    return {"decision, s": completed - began["DECIDE"], "completion, s": ended - completed}


def recovery_seconds(options: Mapping[str, Any], partitions: int, step: str) -> float:
    """What ``recover_job`` takes after a driver that was killed right before ``step``.

    :raises SystemExit: if it was not.
    """
    call = f"from benchmarks.spark_driver import leave; leave({json.dumps(json.dumps([options, partitions, step]))})"
    ended = subprocess.run([sys.executable, "-c", call]).returncode
    if ended != -signal.SIGKILL:
        raise SystemExit(f"the driver that was to be killed ended with {ended}")
    began = time.monotonic()
    recover_job(**options)
    return time.monotonic() - began


def leave(what: str) -> None:
    """Be a driver that is killed; ``what`` is the arguments of recovery_seconds, as JSON."""
    options, partitions, last = json.loads(what)

    def observe(step: str) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    _commit(options, partitions, observe)


def _commit(options: Mapping[str, Any], partitions: int, observe: Callable[[str], None]) -> None:
    batch = WholeBatch(options_of(options), observe)
    work = batch.begin(batch.check(_SCHEMA, "UTC"), 0)
    moment = datetime(2026, 1, 1)
    sides = [
        work.write([(str(part), part, "customer", Decimal("1.50"), moment, "note")], part, part)
        for part in range(partitions)
    ]
    batch.commit(work, sides, 0)
