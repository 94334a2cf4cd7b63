"""Writes Spark's DataFrames to a table and a topic, to both or to neither.

This module only lists the public names. It imports each name at its first use, because the pure modules of this package
need no Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dualwrite.extras import brought_by

if TYPE_CHECKING:
    from dualwrite.spark.batch.comparing import BatchResult
    from dualwrite.spark.batch.datasource import DualWriteDataSource, register
    from dualwrite.spark.batch.write_batch import recover_job, write_batch
    from dualwrite.spark.partitions.writers import BatchWriter, PartitionWriter, batch_writer, partition_writer

__all__ = [
    "BatchResult",
    "BatchWriter",
    "DualWriteDataSource",
    "PartitionWriter",
    "batch_writer",
    "partition_writer",
    "recover_job",
    "register",
    "write_batch",
]

_MODULES = {
    "BatchResult": "dualwrite.spark.batch.comparing",
    "BatchWriter": "dualwrite.spark.partitions.writers",
    "DualWriteDataSource": "dualwrite.spark.batch.datasource",
    "PartitionWriter": "dualwrite.spark.partitions.writers",
    "batch_writer": "dualwrite.spark.partitions.writers",
    "partition_writer": "dualwrite.spark.partitions.writers",
    "recover_job": "dualwrite.spark.batch.write_batch",
    "register": "dualwrite.spark.batch.datasource",
    "write_batch": "dualwrite.spark.batch.write_batch",
}


def __getattr__(name: str) -> Any:
    """Import the public name ``name`` from the module that defines it.

    :raises AttributeError: if there is no such public name.
    :raises ModuleNotFoundError: without Spark; the message says what to install.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'dualwrite.spark' has no attribute {name!r}")
    with brought_by("spark"):
        importlib.import_module("pyspark")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
