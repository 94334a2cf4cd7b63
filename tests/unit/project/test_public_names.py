"""The package's face: every public name is there, and importing it is light."""

import subprocess
import sys

import pytest

import dualwrite
from dualwrite import errors, version

_WITHOUT_EXTRAS = """
import sys
from dualwrite.extras import EXTRAS

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from dualwrite import *
import dualwrite
try:
    dualwrite.AsyncDualWrite
except ImportError as error:
    print(DualWrite.__name__, error)
"""


def test_all_names_can_be_imported_without_the_extras() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("DualWrite AsyncDualWrite: greenlet is not installed"), done.stderr


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in [*dualwrite.__all__, "AsyncDeadLetters", "AsyncDualWrite", "AsyncTransaction"]
        if name != "__version__"
    ],
)
def test_every_public_name_is_that_of_a_class_of_this_package(name: str) -> None:
    public = getattr(dualwrite, name)
    assert (public.__name__, public.__module__.partition(".")[0]) == (name, "dualwrite")


def test_the_version_is_public() -> None:
    assert dualwrite.__version__ == version.__version__


def test_every_error_is_public() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised <= set(dualwrite.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dualwrite' has no attribute 'Nothing'"):
        dualwrite.Nothing  # noqa: B018


def test_importing_it_imports_no_library() -> None:
    code = (
        "import sys, dualwrite; print(sorted({'sqlalchemy', 'confluent_kafka', 'kafka', 'crc32c'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_the_package_imports_without_warnings() -> None:
    code = "import dualwrite; print(len([getattr(dualwrite, name) for name in dualwrite.__all__]))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{len(dualwrite.__all__)}\n", done.stderr


def test_every_public_name_of_spark_is_there() -> None:
    pytest.importorskip("pyspark")
    from dualwrite import spark

    assert [getattr(spark, name).__name__ for name in spark.__all__] == spark.__all__
    with pytest.raises(AttributeError, match=r"module 'dualwrite\.spark' has no attribute 'Nothing'"):
        spark.Nothing  # noqa: B018
