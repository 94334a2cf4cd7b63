"""An executor whose Python lacks a module says what to do, though it cannot load this library."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import py4j
import pyspark
import pytest
from pyspark import cloudpickle
from sqlalchemy import Engine

import dualwrite
from dualwrite import EmbeddedBroker, version
from dualwrite.errors import ConfigurationError
from dualwrite.spark.batch.datasource import WholeBatchStreamWriter, WholeBatchWriter
from dualwrite.spark.batch.task_input import TaskInput
from dualwrite.spark.partitions.writers import PartitionWriter
from tests.support.spark.batch_place import batch_place_on, broker
from tests.support.spark.batches import begun

__all__ = ["broker"]


@pytest.fixture
def work(sqlite: Engine, broker: EmbeddedBroker) -> Iterator[TaskInput]:
    for place in batch_place_on(sqlite, broker):
        yield begun(place.options())[1]


def loaded_with(packages: list[Any], content: bytes, directory: Path) -> str:
    """What a Python says that has no other than ``packages``, when it loads ``content``."""
    for package in packages:
        (directory / package.__name__).symlink_to(Path(package.__file__).parent)
    code = "import pickle, sys; print(type(pickle.loads(sys.stdin.buffer.read())))"
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=content,
        capture_output=True,
        env=environment,
        cwd=directory,
        check=False,
    )
    return done.stderr.decode()


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", [WholeBatchWriter, WholeBatchStreamWriter])
@pytest.mark.parametrize("missing", ["dualwrite", "sqlalchemy"])
def test_a_writer_explains_which_module_the_executors_lack(
    work: TaskInput, tmp_path: Path, kind: Any, missing: str
) -> None:
    packages = [pyspark, py4j] if missing == "dualwrite" else [pyspark, py4j, dualwrite]
    said = loaded_with(packages, cloudpickle.dumps(kind(work.options, work)), tmp_path)
    last = f"ModuleNotFoundError: No module named {missing!r} on the executors: install the driver's packages there, "
    assert f"\n{last}or set PYSPARK_PYTHON" in said


@pytest.mark.parametrize("kind", ["PartitionWriter", "TaskInput", "WholeBatchWriter", "WholeBatchStreamWriter"])
def test_an_executor_with_another_version_says_so(work: TaskInput, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its WriteOptions may have a field more in the middle: those after it would get their neighbours' values."""
    sent: dict[str, Any] = {
        "PartitionWriter": PartitionWriter(work.options, work.plan, work.columns, work.keeps, None),
        "TaskInput": work,
        "WholeBatchWriter": WholeBatchWriter(work.options, work),
        "WholeBatchStreamWriter": WholeBatchStreamWriter(work.options, work),
    }
    content = cloudpickle.dumps(sent[kind])
    monkeypatch.setattr(version, "__version__", "0.0.9")
    said = "the executors have dualwrite 0.0.9, and the driver has .*: install the same version on both"
    with pytest.raises(ConfigurationError, match=said):
        pickle.loads(content)


def test_a_writer_is_the_same_after_it_was_sent(work: TaskInput) -> None:
    for pickling in (pickle, cloudpickle):
        writer = pickle.loads(pickling.dumps(WholeBatchWriter(work.options, work)))
        assert (type(writer), writer.work) == (WholeBatchWriter, work)
