"""kfake that ends as it starts."""

from pathlib import Path

import pytest

from benchmarks.kfake.contender import KFAKE, Kfake


def test_kfake_that_ends_as_it_starts_is_an_error_that_says_so(tmp_path: Path) -> None:
    program = tmp_path / KFAKE / KFAKE
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="kfake ended as it started, with exit code 3"):
        Kfake(tmp_path).start()
