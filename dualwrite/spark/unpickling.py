"""Says what to do if an executor cannot load what Spark sends to it, because its Python lacks a module, or has another
version of dualwrite.

``write_batch`` and ``batch_writer`` see such an error on the driver, and translate it. With ``foreachPartition`` and
``format("dualwrite")`` Spark itself raises the executor's error, so the executor must explain it. It may lack
dualwrite, too: so the function below is sent by value, and uses the standard library only.
"""

import sys
from typing import Any

from dualwrite.version import __version__

ReducedObject = tuple[Any, tuple[bytes, str]]
"""What ``__reduce__`` returns: a function, and its arguments."""


def load_or_explain(content: bytes, version: str) -> Any:
    """Load an object that :func:`reduced` has made smaller.

    :param version: the driver's version of dualwrite.
    :raises ConfigurationError: if this Python has another version. Its objects may have other fields: one option would
        be taken for another.
    :raises ModuleNotFoundError: with what to do, if this Python lacks a module.
    """
    import pickle

    try:
        from dualwrite.version import __version__ as version_here

        if version_here != version:
            from dualwrite.errors import ConfigurationError

            raise ConfigurationError(
                f"the executors have dualwrite {version_here}, and the driver has {version}: install the same version "
                "on both"
            )
        kind, state = pickle.loads(content)  # noqa: S301 - Spark has sent it, as a part of a pickle
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"No module named {error.name!r} on the executors: install the driver's packages there, or set "
            "PYSPARK_PYTHON to an interpreter that has them",
            name=error.name,
        ) from error
    loaded = object.__new__(kind)
    if hasattr(loaded, "__setstate__"):
        loaded.__setstate__(state)
    else:
        loaded.__dict__.update(state)
    return loaded


def reduced(sent: object) -> ReducedObject:
    """For ``__reduce__`` of an object that Spark sends to executors by itself."""
    from pyspark import cloudpickle

    pickling: Any = cloudpickle  # without annotations
    pickling.register_pickle_by_value(sys.modules[__name__])
    return load_or_explain, (pickling.dumps((type(sent), sent.__dict__)), __version__)
