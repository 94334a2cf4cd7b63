"""dualwrite: a SQL database and Kafka that commit together or not at all.

The public names, and nothing else. Each is imported at its first use, so that ``import dualwrite`` loads neither
SQLAlchemy nor a Kafka client. Nothing inside the package imports from here.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dualwrite.version import __version__

if TYPE_CHECKING:
    from dualwrite.broker.embedded import EmbeddedBroker
    from dualwrite.client.async_producer import AsyncTwoPhaseProducer
    from dualwrite.client.machine import Ended
    from dualwrite.client.producer import TwoPhaseProducer
    from dualwrite.client.verbs import State
    from dualwrite.coordinator.librdkafka import LibrdkafkaProducer
    from dualwrite.coordinator.native import NativeProducer
    from dualwrite.coordinator.transaction import Transaction
    from dualwrite.coordinator.unit_of_work import DualWrite
    from dualwrite.errors import (
        AnswerLostError,
        ConfigurationError,
        CorruptLogError,
        DatabaseBusyError,
        DatabaseNotReadyError,
        DualWriteError,
        FencedError,
        InDoubtError,
        InputError,
        InvalidTransactionStateError,
        KafkaRefusedError,
        KafkaUnavailableError,
        NoFreeSlotError,
        PrepareFailedError,
        TwoPhaseCommitUnavailableError,
    )
    from dualwrite.ids import PreparedTxnState

__all__ = [
    "AnswerLostError",
    "AsyncTwoPhaseProducer",
    "ConfigurationError",
    "CorruptLogError",
    "DatabaseBusyError",
    "DatabaseNotReadyError",
    "DualWrite",
    "DualWriteError",
    "EmbeddedBroker",
    "Ended",
    "FencedError",
    "InDoubtError",
    "InputError",
    "InvalidTransactionStateError",
    "KafkaRefusedError",
    "KafkaUnavailableError",
    "LibrdkafkaProducer",
    "NativeProducer",
    "NoFreeSlotError",
    "PrepareFailedError",
    "PreparedTxnState",
    "State",
    "Transaction",
    "TwoPhaseCommitUnavailableError",
    "TwoPhaseProducer",
    "__version__",
]

_ELSEWHERE = {
    "DualWrite": "dualwrite.coordinator.unit_of_work",
    "EmbeddedBroker": "dualwrite.broker.embedded",
    "LibrdkafkaProducer": "dualwrite.coordinator.librdkafka",
    "NativeProducer": "dualwrite.coordinator.native",
    "PreparedTxnState": "dualwrite.ids",
    "Transaction": "dualwrite.coordinator.transaction",
    "AsyncTwoPhaseProducer": "dualwrite.client.async_producer",
    "Ended": "dualwrite.client.machine",
    "State": "dualwrite.client.verbs",
    "TwoPhaseProducer": "dualwrite.client.producer",
}


def __getattr__(name: str) -> Any:
    """The public name ``name``, from the module that defines it.

    :raises AttributeError: if there is no such public name.
    """
    if name not in __all__:
        raise AttributeError(f"module 'dualwrite' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ELSEWHERE.get(name, "dualwrite.errors")), name)
    globals()[name] = value
    return value
