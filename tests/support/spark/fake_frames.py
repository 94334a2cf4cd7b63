"""A DataFrame that is not Spark's, for what the driver does with one: no JVM is needed for that."""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.spark.batch import whole_batch
from dualwrite.spark.batch import write_batch as driver

STREAM = "sql.streaming.queryId"
"""The local property of a thread that runs a micro-batch."""
Rows = Iterable[Sequence[Any]]


class FakeFrame:
    """A DataFrame of one partition.

    :param schema: ``df.schema.jsonValue()``.
    :param rows: of the partition; read when a job of Spark's runs.
    :param streams: it is a micro-batch.
    """

    isStreaming = False  # noqa: N815 - PySpark's name

    def __init__(self, schema: dict[str, Any], rows: Rows, *, master: str = "local[1]", streams: bool = False) -> None:
        properties = {STREAM: "query"} if streams else {}
        context = SimpleNamespace(master=master, getLocalProperty=properties.get)
        conf = SimpleNamespace(get=lambda name, default=None: "UTC" if name.endswith("timeZone") else default)
        self.sparkSession = SimpleNamespace(sparkContext=context, conf=conf)
        self.schema = SimpleNamespace(jsonValue=lambda: schema)
        self.rdd = SimpleNamespace(getNumPartitions=lambda: 1, mapPartitionsWithIndex=self._job)
        self._rows = rows

    def _job(self, act: Callable[[int, Rows], Iterable[Any]]) -> Any:
        return SimpleNamespace(collect=lambda: list(act(0, self._rows)))


def let_write_batch_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``write_batch`` take a FakeFrame, whose rows Spark does not prepare, call its tasks here, and need no
    broker."""
    monkeypatch.setattr(whole_batch, "require_kafka", lambda *_: None)
    monkeypatch.setattr(whole_batch, "complete", lambda *_: None)
    monkeypatch.setattr(driver, "prepared", lambda df, plan, _: (df, plan))
    monkeypatch.setattr(driver, "packed", lambda df, plan: (df, plan))
    monkeypatch.setattr(driver, "rdd_of", lambda df, _: df.rdd)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(taskAttemptId=lambda: 1))
