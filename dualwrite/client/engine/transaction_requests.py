"""The two requests that begin and end a producer's transactions at their coordinator: InitProducerId and EndTxn."""

from collections.abc import Callable
from functools import partial

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.coordinator_request import end_request, init_request
from dualwrite.client.engine.coordinator_sender import CoordinatorSender
from dualwrite.client.engine.pending_operation import VerbInProgress
from dualwrite.client.engine.sender import Sender
from dualwrite.client.engine.transaction_state import TransactionManager, TransactionResult
from dualwrite.client.protocol.requests import identity_in, initialized_in
from dualwrite.client.terms.error_classes import ErrorClass
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import DualWriteError, FencedError, PrepareFailedError
from dualwrite.ids import NO_PRODUCER
from dualwrite.wire.apis import Message


class TransactionRequests:
    """Sends both, and ends the verb in progress with their answers.

    :param verb: the verb in progress.
    :param failed: called with the error of a request that was answered, but must not be acted on.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        machine: TransactionManager,
        verb: VerbInProgress,
        sender: Sender,
        requests: CoordinatorSender,
        failed: Callable[[DualWriteError, ErrorClass], None],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._verb = verb
        self._sender = sender
        self._requests = requests
        self._failed = failed

    def init(self, keeps: bool, refuses: bool, now: float) -> Operation:
        """Fence every earlier producer, and abort, keep or refuse its open transaction."""
        answered = partial(self._initialized, keeps, refuses, now)
        self._requests.call(init_request(self._settings, keeps, answered), now)
        return self._verb.wait().operation

    def end(self, before: ProducerState, commits: bool, now: float) -> Operation:
        """End the transaction of the verb that was called in the state ``before``, and that waits already if it has
        flushed."""
        machine, pending = self._machine, self._verb.pending or self._verb.wait()
        if not commits:
            self._sender.drop(PrepareFailedError("the transaction was aborted"))
        is_open = bool(machine.ongoing) if before is ProducerState.KEPT else machine.may_be_open
        if is_open:
            machine.deciding()
            answered = partial(self._ended, commits)
            self._requests.call(end_request(self._settings, machine.identity, commits, answered), now)
        else:
            machine.ended(NO_PRODUCER)
            self._verb.finish(TransactionResult.NOTHING)
        return pending.operation

    def _ended(self, commits: bool, answer: Message) -> None:
        self._sender.drop(None)
        self._machine.ended(identity_in(answer))
        self._verb.finish(TransactionResult.COMMITTED if commits else TransactionResult.ABORTED)

    def _initialized(self, keeps: bool, refuses: bool, now: float, answer: Message) -> None:
        producer, ongoing = initialized_in(answer)
        self._machine.initialized(producer, ongoing or NO_PRODUCER)
        if keeps or not ongoing:
            self._verb.finish(None)
        elif refuses:
            message = f"{self._settings.transactional_id}: another process has begun a transaction, which stays open"
            self._failed(FencedError(message), ErrorClass.FENCED)
        else:
            aborted = end_request(self._settings, self._machine.identity, False, self._predecessor_aborted)
            self._requests.call(aborted, now)

    def _predecessor_aborted(self, answer: Message) -> None:
        self._machine.ended(identity_in(answer))
        self._verb.finish(None)
