"""The steps at which applications are killed, and kills at random."""

import random
import threading
import time
from dataclasses import replace

import pytest

from tests.support.crash.world import CrashWorld

PRODUCERS = ["native", "librdkafka"]
either_producer = pytest.mark.parametrize("producer", PRODUCERS)
"""For the tests that run quickly under both; the others run under librdkafka among the slow ones."""
STEPS = ["BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]
RECOVERY_STEPS = ["RECOVER_TAKE_OVER", "RECOVER_LOCK", "RECOVER_FENCE_KAFKA", "RECOVER_COMPLETE", "RECOVER_INIT"]


def chaos(world: CrashWorld, seed: int, *, kills: int, units: int, longest: float = 1.2) -> None:
    """Kill the application, and the broker as often as not, at random, ``longest`` seconds after it has started at the
    latest: so often, and until so many units of work were told to be done. Then recover."""
    chance = random.Random(seed)
    patience = time.monotonic() + 300
    killed = 0
    while killed < kills or len(world.told.ok) < units:
        assert time.monotonic() < patience, f"hardly anything happened: {len(world.told.ok)} units, {killed} kills"
        killed += 1
        broker_killer = threading.Timer(chance.uniform(0.1, 1), world.restart_broker)
        if chance.random() < 0.5:
            broker_killer.start()
        world.run(replace(world.task, seed=chance.randrange(10**6)), kill_after=chance.uniform(0.2, longest))
        if broker_killer.is_alive():
            broker_killer.join()
    world.recover()
