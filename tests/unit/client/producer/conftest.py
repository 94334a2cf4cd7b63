"""Both faces of the native producer, for each test."""

import pytest

from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from tests.support.client.producer_rig import Make, ProducerRig


@pytest.fixture(params=[TwoPhaseProducer, AsyncTwoPhaseProducer], ids=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    return lambda **config: ProducerRig(request.param, **config)
