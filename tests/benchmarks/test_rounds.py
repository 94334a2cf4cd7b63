"""The options that the benchmarks share."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.rounds import made_directory


def test_a_directory_that_is_missing_is_made(tmp_path: Path) -> None:
    wanted = tmp_path / "of" / "data"
    assert made_directory(str(wanted)) == wanted
    assert wanted.is_dir()
    assert made_directory(str(wanted)) == wanted


def test_a_path_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentTypeError, match=r"no directory can be made at '.*/file/data': Not a directory"):
        made_directory(str(tmp_path / "file" / "data"))
