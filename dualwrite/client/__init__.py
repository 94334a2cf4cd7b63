"""A Kafka client with the parts that no Python library has: two-phase commit, and the control plane of transactions.
Its engine is sans-I/O."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
    from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer

__all__ = ["AsyncTwoPhaseProducer", "TwoPhaseProducer"]

_ELSEWHERE = {
    "AsyncTwoPhaseProducer": "dualwrite.client.producer.async_two_phase_producer",
    "TwoPhaseProducer": "dualwrite.client.producer.two_phase_producer",
}


def __getattr__(name: str) -> Any:
    """The public name ``name``; imports its module at the first use.

    :raises AttributeError: if there is no such public name.
    """
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'dualwrite.client' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)
