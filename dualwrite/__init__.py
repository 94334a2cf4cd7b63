"""dualwrite: a SQL database and Kafka that commit together or not at all.

The public names, and nothing else. Each is imported at its first use, so that ``import dualwrite`` loads neither
SQLAlchemy nor a Kafka client. Nothing inside the package imports from here.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dualwrite.version import __version__

if TYPE_CHECKING:
    from dualwrite.broker.embedded import EmbeddedBroker
    from dualwrite.client.engine.transaction_state import TransactionResult
    from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
    from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
    from dualwrite.client.terms.verbs import ProducerState
    from dualwrite.coordinator.aio.dead_letters import AsyncDeadLetters as AsyncDeadLetters
    from dualwrite.coordinator.aio.dual_write import AsyncDualWrite as AsyncDualWrite
    from dualwrite.coordinator.aio.transaction import AsyncTransaction as AsyncTransaction
    from dualwrite.coordinator.dead_letters.dead_letters import DeadLetters
    from dualwrite.coordinator.dual_write import DualWrite
    from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
    from dualwrite.coordinator.kafka.native import NativeProducer
    from dualwrite.coordinator.rules.lease import LeaseContradictedError, LeaseLostError
    from dualwrite.coordinator.rules.recovery_decision import Outcome
    from dualwrite.coordinator.sql.dialects.unit_transactions import TransactionEndedError
    from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
    from dualwrite.coordinator.steps.observers import Observer, OffsetsObserver, UnitObserver
    from dualwrite.coordinator.unit.late_binding import transactional
    from dualwrite.coordinator.unit.transaction import Transaction
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
        DeadLetterError,
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
    from dualwrite.records.outgoing import OutgoingRecord

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
    "DeadLetterError",
    "DeadLetters",
    "DecisionLostError",
    "DualWrite",
    "DualWriteError",
    "EmbeddedBroker",
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
    "OffsetsObserver",
    "Outcome",
    "OutgoingRecord",
    "PrepareFailedError",
    "PreparedTxnState",
    "ProducerState",
    "RebalancedError",
    "Transaction",
    "TransactionEndedError",
    "TransactionResult",
    "TwoPhaseCommitUnavailableError",
    "TwoPhaseProducer",
    "UnitCommitted",
    "UnitObserver",
    "__version__",
    "transactional",
]

_OF_EXTRAS = frozenset({"AsyncDeadLetters", "AsyncDualWrite", "AsyncTransaction"})
"""Public names that need an extra: ``from dualwrite import *`` leaves them out, so that it works without."""

_ELSEWHERE = {
    "AsyncDeadLetters": "dualwrite.coordinator.aio.dead_letters",
    "AsyncDualWrite": "dualwrite.coordinator.aio.dual_write",
    "AsyncTransaction": "dualwrite.coordinator.aio.transaction",
    "DeadLetters": "dualwrite.coordinator.dead_letters.dead_letters",
    "DualWrite": "dualwrite.coordinator.dual_write",
    "EmbeddedBroker": "dualwrite.broker.embedded",
    "HeuristicOutcome": "dualwrite.coordinator.sql.outcome_store",
    "LeaseContradictedError": "dualwrite.coordinator.rules.lease",
    "LeaseLostError": "dualwrite.coordinator.rules.lease",
    "LibrdkafkaProducer": "dualwrite.coordinator.kafka.librdkafka",
    "NativeProducer": "dualwrite.coordinator.kafka.native",
    "Outcome": "dualwrite.coordinator.rules.recovery_decision",
    "Observer": "dualwrite.coordinator.steps.observers",
    "OffsetsObserver": "dualwrite.coordinator.steps.observers",
    "OutgoingRecord": "dualwrite.records.outgoing",
    "PreparedTxnState": "dualwrite.ids",
    "transactional": "dualwrite.coordinator.unit.late_binding",
    "TransactionEndedError": "dualwrite.coordinator.sql.dialects.unit_transactions",
    "Transaction": "dualwrite.coordinator.unit.transaction",
    "AsyncTwoPhaseProducer": "dualwrite.client.producer.async_two_phase_producer",
    "TransactionResult": "dualwrite.client.engine.transaction_state",
    "ProducerState": "dualwrite.client.terms.verbs",
    "TwoPhaseProducer": "dualwrite.client.producer.two_phase_producer",
    "UnitObserver": "dualwrite.coordinator.steps.observers",
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
