"""dualwrite: a SQL database and Kafka that commit together or not at all.

The public names, and nothing else. Each is imported at its first use, so that ``import dualwrite`` loads neither
SQLAlchemy nor a Kafka client. Nothing inside the package imports from here.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dualwrite.version import __version__

if TYPE_CHECKING:
    from dualwrite.broker.embedded import EmbeddedBroker
    from dualwrite.client.engine.transaction_state import Ended
    from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
    from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
    from dualwrite.client.terms.verbs import State
    from dualwrite.coordinator.async_transaction import AsyncTransaction as AsyncTransaction
    from dualwrite.coordinator.async_unit_of_work import AsyncDualWrite as AsyncDualWrite
    from dualwrite.coordinator.databases.units import TransactionEndedError
    from dualwrite.coordinator.lease import LeaseContradictedError, LeaseLostError
    from dualwrite.coordinator.librdkafka import LibrdkafkaProducer
    from dualwrite.coordinator.native import NativeProducer
    from dualwrite.coordinator.observing import Observer, UnitObserver
    from dualwrite.coordinator.outcomes import HeuristicOutcome
    from dualwrite.coordinator.transaction import Transaction
    from dualwrite.coordinator.unit_of_work import DualWrite
    from dualwrite.coordinator.verdict import Outcome
    from dualwrite.errors import (
        AnswerLostError,
        BatchChangedError,
        CommittedError,
        ConfigurationError,
        CopiedDatabaseError,
        CorruptLogError,
        DatabaseBusyError,
        DatabaseNotReadyError,
        DatabaseUnavailableError,
        DecisionLostError,
        DualWriteError,
        FencedError,
        ForeignClusterError,
        InDoubtError,
        InputError,
        InvalidTransactionStateError,
        KafkaRefusedError,
        KafkaUnavailableError,
        NoFreeSlotError,
        PrepareFailedError,
        RebalancedError,
        TwoPhaseCommitUnavailableError,
        UnitCommitted,
    )
    from dualwrite.ids import PreparedTxnState

__all__ = [
    "AnswerLostError",
    "AsyncTwoPhaseProducer",
    "BatchChangedError",
    "CommittedError",
    "ConfigurationError",
    "CopiedDatabaseError",
    "CorruptLogError",
    "DatabaseBusyError",
    "DatabaseNotReadyError",
    "DatabaseUnavailableError",
    "DecisionLostError",
    "DualWrite",
    "DualWriteError",
    "EmbeddedBroker",
    "Ended",
    "FencedError",
    "ForeignClusterError",
    "HeuristicOutcome",
    "InDoubtError",
    "InputError",
    "InvalidTransactionStateError",
    "KafkaRefusedError",
    "KafkaUnavailableError",
    "LeaseContradictedError",
    "LeaseLostError",
    "LibrdkafkaProducer",
    "NativeProducer",
    "NoFreeSlotError",
    "Observer",
    "Outcome",
    "PrepareFailedError",
    "PreparedTxnState",
    "RebalancedError",
    "State",
    "Transaction",
    "TransactionEndedError",
    "TwoPhaseCommitUnavailableError",
    "TwoPhaseProducer",
    "UnitCommitted",
    "UnitObserver",
    "__version__",
]

_OF_EXTRAS = frozenset({"AsyncDualWrite", "AsyncTransaction"})
"""Public names that need an extra: ``from dualwrite import *`` leaves them out, so that it works without."""

_ELSEWHERE = {
    "AsyncDualWrite": "dualwrite.coordinator.async_unit_of_work",
    "AsyncTransaction": "dualwrite.coordinator.async_transaction",
    "DualWrite": "dualwrite.coordinator.unit_of_work",
    "EmbeddedBroker": "dualwrite.broker.embedded",
    "HeuristicOutcome": "dualwrite.coordinator.outcomes",
    "LeaseContradictedError": "dualwrite.coordinator.lease",
    "LeaseLostError": "dualwrite.coordinator.lease",
    "LibrdkafkaProducer": "dualwrite.coordinator.librdkafka",
    "NativeProducer": "dualwrite.coordinator.native",
    "Outcome": "dualwrite.coordinator.verdict",
    "Observer": "dualwrite.coordinator.observing",
    "PreparedTxnState": "dualwrite.ids",
    "TransactionEndedError": "dualwrite.coordinator.databases.units",
    "Transaction": "dualwrite.coordinator.transaction",
    "AsyncTwoPhaseProducer": "dualwrite.client.producer.async_two_phase_producer",
    "Ended": "dualwrite.client.engine.transaction_state",
    "State": "dualwrite.client.terms.verbs",
    "TwoPhaseProducer": "dualwrite.client.producer.two_phase_producer",
    "UnitObserver": "dualwrite.coordinator.observing",
}


def __getattr__(name: str) -> Any:
    """The public name ``name``, from the module that defines it.

    :raises AttributeError: if there is no such public name.
    :raises ImportError: if it needs an extra that is not installed; the message names that.
    """
    if name not in __all__ and name not in _OF_EXTRAS:
        raise AttributeError(f"module 'dualwrite' has no attribute {name!r}")
    try:
        module = importlib.import_module(_ELSEWHERE.get(name, "dualwrite.errors"))
    except ImportError as error:
        from dualwrite.extras import advice, missing_library

        library = missing_library(error)
        if library is None:
            raise
        raise ImportError(f"{name}: {advice(library)}") from error
    value = getattr(module, name)
    globals()[name] = value
    return value
