"""Transactions of both versions (KIP-98, KIP-360, KIP-588, KIP-890): every state, its errors, and its epochs."""

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.apis import AddPartitionsToTxnRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject, Word
from tests.support.requests import calls
from tests.support.requests.calls import batch, describe, identity, init, produce, tx_batch
from tests.support.waiting import eventually

TV1, TV2 = 9, 12
"""Versions of Produce."""


class Actor:
    """A transactional producer that notes what it is answered, and goes on with the identity that it is given."""

    def __init__(self, broker: Subject, name: str = "", topic: str = "") -> None:
        self.broker = broker
        self.name = name or broker.name("tx")
        self.topic = topic or broker.topic()
        self.identity = NO_PRODUCER
        self.sequence = 0

    def init(self, step: str, version: int = 4, **more: object) -> "Actor":
        """InitProducerId."""
        answer = self.broker.settled(lambda: init(self.broker.client, self.name, version=version, **more))  # type: ignore[arg-type]
        self._note_identity(step, answer)
        return self

    def end(self, step: str, commit: bool = True, version: int = 3, producer: ProducerIdentity | None = None) -> None:
        """EndTxn; returns once the transaction is complete."""
        client, used = self.broker.client, producer or self.identity
        answer = self.broker.settled(lambda: calls.end(client, self.name, used, commit, version))
        if version >= 5:
            self._note_identity(step, answer)
        else:
            self.broker.note(step, error=answer.error_code)
        eventually(lambda: describe(client, self.name).transaction_state, lambda state: not state.startswith("Prepare"))

    def add(self, step: str, *partitions: tuple[str, int], version: int = 3) -> None:
        """AddPartitionsToTxn."""

        def ask() -> dict[tuple[str, int], ErrorCode]:
            return calls.add(self.broker.client, self.name, self.identity, *partitions, version=version)

        seen = eventually(ask, lambda errors: ErrorCode.CONCURRENT_TRANSACTIONS not in errors.values())
        self.broker.note(step, errors=[Word(seen[place].name) for place in partitions])

    def send(
        self, step: str, version: int, producer: ProducerIdentity | None = None, sequence: int | None = None
    ) -> None:
        """Produce one record."""
        number = self.sequence if sequence is None else sequence
        content = tx_batch([b"v"], producer or self.identity, number)

        def ask() -> Message:
            return produce(self.broker.client, self.topic, content, self.name, version=version)

        answer = self.broker.settled(ask)
        self.broker.note(step, error=answer.error_code, offset=answer.base_offset)
        if answer.error_code == ErrorCode.NONE and sequence is None:
            self.sequence += 1

    def describe(self, step: str) -> None:
        """DescribeTransactions."""
        seen = describe(self.broker.client, self.name)
        self.broker.note(
            step,
            error=seen.error_code,
            state=seen.transaction_state,
            timeout=seen.transaction_timeout_ms,
            started=self.broker.moment(seen.transaction_start_time_ms),
            producer=ProducerIdentity(seen.producer_id, seen.producer_epoch),
            partitions=[(entry.topic, list(entry.partitions)) for entry in seen.topics],
        )

    def begin(self, version: int) -> "Actor":
        """A session with an open transaction of one record, noted as its two or three steps."""
        self.init("init")
        if version == TV1:
            self.add("add", (self.topic, 0))
        self.send("produce", version)
        return self

    def _note_identity(self, step: str, answer: Message) -> None:
        given = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.broker.note(step, error=answer.error_code, producer=given)
        if answer.error_code == ErrorCode.NONE and given != self.identity and given.producer_id >= 0:
            self.identity, self.sequence = given, 0


@case
def the_first_version_in_every_version_of_its_requests(broker: Subject) -> None:
    topic = broker.topic()
    for number, (init_version, add_version, produce_version, end_version) in enumerate(
        [(0, 0, 3, 0), (1, 1, 7, 1), (2, 2, 8, 2), (3, 3, 9, 3), (4, 3, 11, 4), (5, 3, 11, 3)]
    ):
        actor = Actor(broker, topic=topic).init(f"{number}: init", init_version)
        actor.add(f"{number}: add", (topic, 0), version=add_version)
        actor.send(f"{number}: produce", produce_version)
        actor.end(f"{number}: end", number % 2 == 0, end_version)
        actor.describe(f"{number}: then")


@case
def several_transactions_of_one_session(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    for number in range(3):
        actor.add(f"{number}: add", (actor.topic, 0))
        actor.send(f"{number}: produce", TV1)
        actor.end(f"{number}: end", commit=number != 1)
        actor.describe(f"{number}: then")
    actor.init("init again")
    actor.describe("at last")


@case
def several_transactions_of_the_second_version(broker: Subject) -> None:
    actor = Actor(broker).init("init", 5)
    for number in range(3):
        actor.send(f"{number}: produce", TV2)
        actor.send(f"{number}: once more", TV2)
        actor.describe(f"{number}: open")
        actor.end(f"{number}: end", commit=number != 1, version=5)
        actor.describe(f"{number}: then")
    actor.init("init again", 5)
    actor.describe("at last")


@case
def the_end_again_in_the_first_version(broker: Subject) -> None:
    for commit in (True, False):
        word = "commit" if commit else "abort"
        actor = Actor(broker).init(f"{word}: init")
        actor.add(f"{word}: add", (actor.topic, 0))
        actor.end(word, commit)
        actor.end(f"{word} again", commit)
        actor.end(f"{word}, then the other", not commit)
        actor.end(f"{word} again in v5", commit, version=5)
        actor.describe(f"{word}: then")


@case
def the_end_again_in_the_second_version(broker: Subject) -> None:
    for commit in (True, False):
        word = "commit" if commit else "abort"
        actor = Actor(broker).init(f"{word}: init")
        actor.send(f"{word}: produce", TV2)
        before = actor.identity
        actor.end(word, commit, 5)
        actor.end(f"{word} again", commit, 5, before)
        actor.end(f"{word}, then the other", not commit, 5, before)
        actor.end(f"{word} again in v4", commit, 4, before)
        actor.end(f"{word} with the new epoch", True, 5)
        actor.describe(f"{word}: then")
        actor.end(f"{word}, and abort with the new epoch", False, 5)
        actor.describe(f"{word}: at last")


@case
def the_end_again_once_the_next_is_open(broker: Subject) -> None:
    actor = Actor(broker).begin(TV2)
    before = actor.identity
    actor.end("commit", True, 5)
    actor.send("the next", TV2)
    actor.end("the first again", True, 5, before)
    actor.end("the next's", True, 5)
    actor.end("the first once more", True, 5, before)


@case
def the_end_of_nothing(broker: Subject) -> None:
    for version in (3, 5):
        for commit in (True, False):
            word = f"{'commit' if commit else 'abort'} in v{version}"
            actor = Actor(broker).init(f"{word}: init")
            actor.end(word, commit, version)
            actor.describe(f"{word}: then")
            actor.end(f"{word} again", commit, version)


@case
def the_versions_mixed(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    actor.add("add", (actor.topic, 0))
    actor.send("produce as TV1", TV1)
    actor.end("end as TV2", True, 5)
    actor.send("produce as TV2", TV2)
    actor.end("end as TV1", True, 4)
    actor.describe("then")
    actor.send("produce without adding", TV1)
    actor.send("produce as TV2 again", TV2)
    actor.send("as TV1 what has been added", TV1)
    actor.end("end at last", False, 5)


@case
def partitions_that_join(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    actor.add("none")
    actor.describe("after none")
    actor.add("one", (actor.topic, 0))
    actor.add("the same", (actor.topic, 0))
    actor.add("unknown", (actor.topic, 1))
    actor.add("unknown topic", ("no-such-topic", 0))
    more = broker.topic()
    actor.add("one and an unknown one", (more, 0), ("no-such-topic", 0))
    actor.describe("then")


@case
def what_was_not_added_is_refused(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    for version in (3, 8, 9, 10, 11):
        actor.send(f"nothing open, v{version}", version)
    actor.add("another", (broker.topic(), 0))
    for version in (3, 10, 11):
        actor.send(f"another open, v{version}", version)


@case
def strangers(broker: Subject) -> None:
    for step, producer in {"nobody": NO_PRODUCER, "somebody": ProducerIdentity(4711, 0)}.items():
        actor = Actor(broker)
        actor.identity = producer
        actor.describe(f"{step}: described")
        actor.add(f"{step}: add", (actor.topic, 0))
        for version in (0, 3, 5):
            actor.end(f"{step}: end in v{version}", version=version)
        if producer:
            actor.send(f"{step}: TV1", TV1)
            actor.send(f"{step}: TV2", TV2)
    known = Actor(broker).init("init")
    known.identity = ProducerIdentity(4711, 0)
    known.add("wrong id: add", (known.topic, 0))
    known.end("wrong id: end")
    known.send("wrong id: TV1", TV1)
    known.send("wrong id: TV2", TV2)


@case
def an_empty_transactional_id(broker: Subject) -> None:
    for version in (0, 4):
        answer = init(broker.client, "", version=version)
        broker.note(f"init v{version}", error=answer.error_code)
    producer = identity(init(broker.client, None, version=4))
    topic = broker.topic()
    broker.note("end", error=calls.end(broker.client, "", producer, version=3).error_code)
    broker.note("add", error=calls.add(broker.client, "", producer, (topic, 0))[topic, 0])
    for version in (TV1, TV2):
        answer = produce(broker.client, topic, tx_batch([b"v"], producer), "", version=version)
        broker.note(f"produce v{version}", error=answer.error_code)


@case
def fenced_by_a_second_session(broker: Subject) -> None:
    first = Actor(broker).init("first")
    Actor(broker, first.name, first.topic).init("second")
    for version in (1, 2, 3):
        first.add(f"add in v{version}", (first.topic, 0), version=version)
    for version in (0, 1, 2, 4, 5):
        first.end(f"end in v{version}", version=version)
    for version in (9, 11, 12, 13):
        if version < 13:
            first.send(f"produce in v{version}", version)
    for version in (3, 4):
        answer = init(broker.client, first.name, version=version, expected=first.identity)
        broker.note(f"init as the first in v{version}", error=answer.error_code)


@case
def fenced_while_the_transaction_is_open(broker: Subject) -> None:
    for version in (TV1, TV2):
        step = "TV1" if version == TV1 else "TV2"
        first = Actor(broker).init(f"{step}: init")
        if version == TV1:
            first.add(f"{step}: add", (first.topic, 0))
        first.send(f"{step}: produce", version)
        second = Actor(broker, first.name, first.topic).init(f"{step}: second")
        second.describe(f"{step}: then")
        first.send(f"{step}: the first again", version)
        first.end(f"{step}: the first ends", version=5 if version == TV2 else 3)
        second.send(f"{step}: the second", TV2)
        second.end(f"{step}: the second ends", version=5)


@case
def identities_that_a_session_expects(broker: Subject) -> None:
    actor = Actor(broker).init("init")
    first = actor.identity
    actor.init("its own", expected=first)
    actor.init("its own again", expected=first)
    second = actor.identity
    for step, expected in {
        "later": ProducerIdentity(second.producer_id, second.epoch + 1),
        "much later": ProducerIdentity(second.producer_id, 17),
        "another id": ProducerIdentity(second.producer_id + 1_000_000, 0),
        "no epoch": ProducerIdentity(second.producer_id, -1),
        "no id": ProducerIdentity(-1, 0),
    }.items():
        actor.init(step, expected=expected)
    for version in (3, 4, 5):
        actor.init(f"in v{version}", version, expected=actor.identity)
    actor.init("an unknown transactional id's first")
    Actor(broker).init("somebody's, for a new id", expected=actor.identity)


@case
def an_open_transaction_and_the_identity_that_a_session_expects(broker: Subject) -> None:
    for version in (TV1, TV2):
        step = "TV1" if version == TV1 else "TV2"
        actor = Actor(broker).init(f"{step}: init")
        if version == TV1:
            actor.add(f"{step}: add", (actor.topic, 0))
        actor.send(f"{step}: produce", version)
        before = actor.identity
        actor.init(f"{step}: init with its own", expected=before)
        actor.describe(f"{step}: then")
        actor.init(f"{step}: once more", expected=before)
        actor.describe(f"{step}: at last")


@case
def what_no_transaction_may_mix(broker: Subject) -> None:
    actor = Actor(broker).begin(TV2)
    answer = produce(broker.client, actor.topic, batch([b"v"], actor.identity, 1))
    broker.note("not transactional, open", error=answer.error_code)
    other = Actor(broker, topic=actor.topic).init("other")
    other.send("another's batch", TV2, producer=actor.identity, sequence=1)
    actor.end("end", version=5)
    answer = produce(broker.client, actor.topic, batch([b"v"], actor.identity, 0))
    broker.note("not transactional, ended", error=answer.error_code)


@case
def sequences_in_transactions(broker: Subject) -> None:
    actor = Actor(broker).begin(TV2)
    actor.send("the same again", TV2, sequence=0)
    actor.send("a gap", TV2, sequence=2)
    actor.send("the next", TV2, sequence=1)
    before = actor.identity
    actor.end("commit", version=5)
    actor.send("the old epoch", TV2, producer=before, sequence=2)
    actor.send("not at zero", TV2, sequence=2)
    actor.send("at zero", TV2, sequence=0)
    actor.end("abort", False, version=5)
    actor.send("at zero again", TV2, sequence=0)


@case
def sequences_in_transactions_of_the_first_version(broker: Subject) -> None:
    actor = Actor(broker).begin(TV1)
    actor.end("commit")
    actor.send("nothing added", TV1, sequence=1)
    actor.add("add again", (actor.topic, 0))
    actor.send("a gap", TV1, sequence=5)
    actor.send("the next", TV1, sequence=1)
    actor.end("abort", False)
    actor.add("add once more", (actor.topic, 0))
    actor.send("going on", TV1, sequence=2)


Wanted = tuple[str, ProducerIdentity, tuple[str, int], bool]
"""A transactional id, its producer, a partition, and whether that is only to be verified."""


def _verify(broker: Subject, step: str, version: int, *wanted: Wanted) -> None:
    entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    transactions = [
        entry(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=only,
            topics=calls.added_topics([partition]),
        )
        for name, producer, partition, only in wanted
    ]
    answer = broker.client.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
    results = {
        entry.transactional_id: calls.partition_errors(entry.topic_results) for entry in answer.results_by_transaction
    }
    broker.note(
        step,
        error=answer.error_code,
        results=[(name, sorted(error.name for error in results[name].values())) for name, *_ in wanted],
    )


@case
def partitions_verified(broker: Subject) -> None:
    actor = Actor(broker).begin(TV2)
    other = broker.topic()
    place, elsewhere = (actor.topic, 0), (other, 0)
    stranger = ProducerIdentity(4711, 0)
    later = ProducerIdentity(actor.identity.producer_id, actor.identity.epoch + 1)
    for version in (4, 5):
        _verify(broker, f"v{version}: there", version, (actor.name, actor.identity, place, True))
        _verify(broker, f"v{version}: not there", version, (actor.name, actor.identity, elsewhere, True))
        _verify(broker, f"v{version}: a later epoch", version, (actor.name, later, place, True))
        _verify(broker, f"v{version}: another id", version, (actor.name, stranger, place, True))
        _verify(broker, f"v{version}: unknown", version, (broker.name("tx"), stranger, place, True))
        second = Actor(broker).init(f"v{version}: init")
        _verify(
            broker,
            f"v{version}: several",
            version,
            (actor.name, actor.identity, place, True),
            (second.name, second.identity, elsewhere, True),
        )
        _verify(broker, f"v{version}: added", version, (second.name, second.identity, elsewhere, False))
        _verify(broker, f"v{version}: then there", version, (second.name, second.identity, elsewhere, True))
    before = actor.identity
    actor.end("end", version=5)
    _verify(broker, "ended, the old epoch", 5, (actor.name, before, place, True))
    _verify(broker, "ended, the new epoch", 5, (actor.name, actor.identity, place, True))


@case
def two_phase_commit_asked_for(broker: Subject) -> None:
    for step, flags in {
        "both": {"two_phase": True, "keep": True},
        "two phases": {"two_phase": True},
        "keep": {"keep": True},
        "neither": {},
    }.items():
        actor = Actor(broker)
        actor.init(step, 6, **flags)
        actor.describe(f"{step}, then")
