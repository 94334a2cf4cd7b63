"""What a start has opened is no part of later garbage collections, which would stop the broker for as long as it is
large."""

import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite import EmbeddedBroker

START = """
import gc, os, sys
from dualwrite.broker.runtime.partition import Partition
from dualwrite.broker.server import Server
from dualwrite.cli.main import main

async def start(server, bound):
    partitions = [each for each in gc.get_objects() if isinstance(each, Partition)]
    os.write(1, f"{gc.get_freeze_count() > 0} {len(partitions)}".encode())
    os._exit(0)

Server.start = start
main(["broker", "--data-dir", sys.argv[1], "--listen", "127.0.0.1:0"])
"""


@pytest.mark.slow
def test_a_collection_does_not_look_at_the_partitions_that_a_start_has_opened(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path):
        pass  # which makes the broker's own topics
    done = subprocess.run([sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True 0"
