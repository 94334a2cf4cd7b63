"""The two requests that begin and end a producer's transactions at their coordinator: InitProducerId and EndTxn."""

from functools import partial

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.coordinator_request import end_request, init_request
from dualwrite.client.engine.coordinator_sender import CoordinatorSender
from dualwrite.client.engine.pending_operation import VerbInProgress
from dualwrite.client.engine.sender import Sender
from dualwrite.client.engine.transaction_state import TransactionManager, TransactionResult
from dualwrite.client.protocol.requests import identity_in, initialized_in
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import PrepareFailedError
from dualwrite.ids import NO_PRODUCER
from dualwrite.wire.apis import Message


class TransactionRequests:
    """Sends both, and ends the verb in progress with their answers.

    :param verb: the verb in progress.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        machine: TransactionManager,
        verb: VerbInProgress,
        sender: Sender,
        requests: CoordinatorSender,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._verb = verb
        self._sender = sender
        self._requests = requests

    def init(self, keeps: bool, now: float) -> Operation:
        """Fence every earlier producer, and abort or keep its open transaction."""
        self._requests.call(init_request(self._settings, keeps, partial(self._initialized, keeps, now)), now)
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

    def _initialized(self, keeps: bool, now: float, answer: Message) -> None:
        producer, ongoing = initialized_in(answer)
        self._machine.initialized(producer, ongoing or NO_PRODUCER)
        if ongoing and not keeps:
            aborted = end_request(self._settings, self._machine.identity, False, self._predecessor_aborted)
            self._requests.call(aborted, now)
        else:
            self._verb.finish(None)

    def _predecessor_aborted(self, answer: Message) -> None:
        self._machine.ended(identity_in(answer))
        self._verb.finish(None)
