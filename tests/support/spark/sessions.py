"""Spark sessions of the tests: one on threads of this process's JVM, and clusters of processes in programs of their
own."""

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import missing
from tests.support.class_archives import QUICK, mapping
from tests.support.spark.class_archive import SPARK_CLASSES, make_spark_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).parents[3]

JAVA = shlex.join([*QUICK, *mapping(SPARK_CLASSES)])

SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "Europe/Vienna",
    "spark.log.level": "ERROR",
}


def require_spark() -> None:
    """Skip the test where there is no Spark, or fail where it must be."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        missing("Spark", "it needs Java 17 and dualwrite[spark]")
    make_spark_classes()


@contextmanager
def spark_session(master: str, **settings: str) -> "Iterator[SparkSession]":
    """A session on ``master``, stopped at the end with its JVM. Its Python workers are this interpreter's
    and see this checkout."""
    require_spark()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH", "")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable  # and not the first python3 of PATH
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("dualwrite tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
