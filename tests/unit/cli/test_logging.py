"""Where the library's log goes when the program has not set logging up: nowhere."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_without_logging_set_up_the_library_is_silent() -> None:
    code = (
        "import logging, dualwrite.coordinator.dual_write\n"
        "logging.getLogger('dualwrite').error('one')\n"
        "logging.getLogger('dualwrite.librdkafka').error('two')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
