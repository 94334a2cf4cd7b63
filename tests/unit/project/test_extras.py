"""A library of an extra that is not installed is named with what to install, from Python as on the command line."""

import subprocess
import sys

import pytest

import dualwrite
from dualwrite.extras import EXTRAS, advice, brought_by, missing_library

ASYNCIO = "greenlet is not installed; run pip install '.[asyncio]' in a clone of dualwrite"


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("library", EXTRAS)
def test_every_library_is_known_by_any_of_its_modules(library: str) -> None:
    assert missing_library(ModuleNotFoundError(name=library)) == library
    assert missing_library(ModuleNotFoundError(name=f"{library}.inside")) == f"{library}.inside"
    assert advice(f"{library}.inside").endswith(f"pip install '.[{EXTRAS[library]}]' in a clone of dualwrite")


def test_a_library_is_found_where_it_is_the_cause() -> None:
    assert missing_library(caused(ImportError("asyncio"), ModuleNotFoundError(name="greenlet"))) == "greenlet"


@pytest.mark.parametrize(
    "error",
    [
        ImportError("circular", name="re2"),
        ModuleNotFoundError(name="elsewhere"),
        ModuleNotFoundError("without a name"),
        caused(ImportError("x"), ValueError("y")),
    ],
    ids=["not missing", "another library", "nameless", "another cause"],
)
def test_other_errors_are_about_no_library_of_an_extra(error: Exception) -> None:
    assert missing_library(error) is None


def test_a_block_of_imports_names_the_extra_that_it_is_given() -> None:
    said = r"prometheus_client is not installed; run pip install '\.\[metrics\]'"
    with pytest.raises(ModuleNotFoundError, match=said), brought_by("metrics"):
        raise ModuleNotFoundError("No module named 'prometheus_client'", name="prometheus_client")
    with brought_by("metrics"):
        pass


@pytest.mark.slow_cases("web", "metrics")
@pytest.mark.parametrize(
    ("library", "statement", "said"),
    [
        ("greenlet", "from dualwrite import AsyncDualWrite", f"ImportError: AsyncDualWrite: {ASYNCIO}"),
        ("greenlet", "from dualwrite import AsyncTransaction", f"ImportError: AsyncTransaction: {ASYNCIO}"),
        (
            "prometheus_client",
            "import dualwrite.telemetry.prometheus",
            "ModuleNotFoundError: prometheus_client is not installed; run pip install '.[metrics]' in a clone of "
            "dualwrite",
        ),
        (
            "opentelemetry",
            "import dualwrite.telemetry.opentelemetry",
            "ModuleNotFoundError: opentelemetry is not installed; run pip install '.[opentelemetry]' in a "
            "clone of dualwrite",
        ),
        (
            "pyspark",
            "from dualwrite.spark import partition_writer",
            "ModuleNotFoundError: pyspark is not installed; run pip install '.[spark]' in a clone of dualwrite",
        ),
        (
            "fastapi",
            "import dualwrite.web",
            "ModuleNotFoundError: fastapi is not installed; run pip install '.[fastapi]' in a clone of dualwrite",
        ),
        (
            "greenlet",
            "import dualwrite.web",
            "ModuleNotFoundError: greenlet is not installed; run pip install '.[fastapi]' in a clone of dualwrite",
        ),
        (
            "jinja2",
            "import dualwrite.console.app",
            "ModuleNotFoundError: jinja2 is not installed; run pip install '.[console]' in a clone of dualwrite",
        ),
    ],
    ids=["AsyncDualWrite", "AsyncTransaction", "metrics", "traces", "spark", "web", "web on greenlets", "console"],
)
def test_an_import_that_needs_an_extra_says_what_to_install(library: str, statement: str, said: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, said)


def test_another_import_error_is_raised_unchanged() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; from dualwrite import DualWrite"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")
    assert "pip install" not in done.stderr


@pytest.mark.slow
def test_all_but_asyncio_is_there_without_greenlet() -> None:
    names = [name for name in dualwrite.__all__ if name != "__version__"]
    code = (
        f"import sys; sys.modules['greenlet'] = None; from dualwrite import {', '.join(names)}; "
        f"print({', '.join(f'{name}.__name__' for name in names)}, sys.modules['greenlet'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == [*names, "None"], done.stderr


def test_sparks_pure_modules_import_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; from dualwrite.spark.plan import options, rows; "
        "print(options.__name__, rows.__name__, [name for name in sys.modules if name.partition('.')[0] == 'pyspark'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "dualwrite.spark.plan.options dualwrite.spark.plan.rows ['pyspark']\n", done.stderr
