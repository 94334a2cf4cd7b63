"""What a stranger tries against somebody's transactions, on a broker with ACLs.

The owner and the stranger are the same principal at different addresses, which ACLs tell apart.
"""

from collections.abc import Callable, Iterator

import pytest

from dualwrite.broker.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import AddOffsetsToTxnRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests import admin_calls, calls, marker_calls, offset_calls
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.raw_client import RawClient

OWNER, STRANGER = "127.0.0.1", "127.0.0.2"
CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
RESOURCES = (
    (ResourceType.TOPIC, "*"),
    (ResourceType.GROUP, "*"),
    (ResourceType.TRANSACTIONAL_ID, "*"),
    (ResourceType.CLUSTER, CLUSTER_NAME),
)
NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker on which only the owner's address has rights."""
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=CONFIG) as broker:
        with RawClient(broker.bootstrap_servers, OWNER) as owner:
            create(owner, [acl(AclOperation.ALL, kind, name, host=OWNER) for kind, name in RESOURCES])
        yield broker.bootstrap_servers


@pytest.fixture
def owner(servers: str) -> Iterator[RawClient]:
    with RawClient(servers, OWNER) as client:
        yield client


@pytest.fixture
def stranger(servers: str) -> Iterator[RawClient]:
    with RawClient(servers, STRANGER) as client:
        yield client


def allow(owner: RawClient, operation: AclOperation, kind: ResourceType, name: str) -> None:
    """Give the stranger a right."""
    assert create(owner, [acl(operation, kind, name, host=STRANGER)]) == [ErrorCode.NONE]


class Prepared:
    """A transaction that its owner has prepared: two-phase commit, one record, not ended."""

    def __init__(self, owner: RawClient) -> None:
        self.owner = owner
        self.topic, self.name = calls.new_topic(owner), calls.unique("tx")
        self.producer = calls.new_producer(owner, self.name, two_phase=True)
        calls.open_transaction(owner, self.name, self.producer, {(self.topic, 0): [b"v"]})

    def commits(self) -> bool:
        """Commit; whether a reader sees the record."""
        assert calls.end(self.owner, self.name, self.producer).error_code == ErrorCode.NONE
        return calls.read_all(self.owner, self.topic) == [b"v"]


def write_markers(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    marker = marker_calls.marker(mine.producer, (mine.topic, 0))
    return set(marker_calls.write(stranger, marker).values())


def begin_a_session(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return {ErrorCode(calls.init(stranger, mine.name).error_code)}


def keep_the_transaction(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return {ErrorCode(calls.init(stranger, mine.name, two_phase=True, keep=True).error_code)}


def end_it(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return {ErrorCode(calls.end(stranger, mine.name, mine.producer, commit=False).error_code)}


def end_it_in_tv1(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return {ErrorCode(calls.end(stranger, mine.name, mine.producer, commit=False, version=3).error_code)}


def add_a_partition(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return set(calls.add(stranger, mine.name, mine.producer, (mine.topic, 0)).values())


def add_offsets(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    request = AddOffsetsToTxnRequest(
        transactional_id=mine.name,
        producer_id=mine.producer.producer_id,
        producer_epoch=mine.producer.epoch,
        group_id="g",
    )
    return {ErrorCode(stranger.ask(request, 4).error_code)}


def add_a_record(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    records = calls.tx_batch([b"stolen"], mine.producer, 1)
    return {ErrorCode(calls.produce(stranger, mine.topic, records, mine.name, version=12).error_code)}


def add_a_record_under_an_id_of_its_own(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    records = calls.tx_batch([b"stolen"], mine.producer, 1)
    return {ErrorCode(calls.produce(stranger, mine.topic, records, "mine", version=12).error_code)}


def delete_the_topic(stranger: RawClient, mine: Prepared) -> set[ErrorCode]:
    return set(admin_calls.delete(stranger, mine.topic).values())


ATTACKS: dict[Callable[[RawClient, Prepared], set[ErrorCode]], ErrorCode] = {
    write_markers: NO_CLUSTER,
    begin_a_session: NO_ID,
    keep_the_transaction: NO_ID,
    end_it: NO_ID,
    end_it_in_tv1: NO_ID,
    add_a_partition: NO_ID,
    add_offsets: NO_ID,
    add_a_record: NO_ID,
    add_a_record_under_an_id_of_its_own: NO_ID,
    delete_the_topic: NO_TOPIC,
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_stranger_without_rights_cannot_touch_a_prepared_transaction(
    owner: RawClient, stranger: RawClient, attack: Callable[[RawClient, Prepared], set[ErrorCode]]
) -> None:
    mine = Prepared(owner)
    assert attack(stranger, mine) == {ATTACKS[attack]}
    assert mine.commits()


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS if each is not delete_the_topic], ids=lambda each: each.__name__
)
def test_a_stranger_with_write_access_to_the_topic_cannot_touch_a_prepared_transaction(
    owner: RawClient, stranger: RawClient, attack: Callable[[RawClient, Prepared], set[ErrorCode]]
) -> None:
    mine = Prepared(owner)
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, mine.topic)
    assert attack(stranger, mine) == {ATTACKS[attack]}
    assert mine.commits()


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("timeout_ms", [calls.TWO_PHASE_TIMEOUT, calls.LIBRDKAFKA_TWO_PHASE_TIMEOUT])
def test_the_longest_timeout_needs_the_right_to_two_phase_commit(
    owner: RawClient, stranger: RawClient, version: int, timeout_ms: int
) -> None:
    """KIP-98: a transaction that never ends holds every reader of committed records back."""
    name = calls.unique("tx")
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    endless = calls.init(stranger, name, version=version, timeout_ms=timeout_ms)
    assert endless.error_code == NO_ID
    assert calls.init(stranger, name, version=version).error_code == ErrorCode.NONE
    allow(owner, AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    endless = calls.init(stranger, name, version=version, timeout_ms=timeout_ms)
    assert endless.error_code == ErrorCode.NONE


def test_the_flag_of_two_phase_commit_needs_the_right_to_it(owner: RawClient, stranger: RawClient) -> None:
    name = calls.unique("tx")
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    assert calls.init(stranger, name, two_phase=True).error_code == NO_ID
    allow(owner, AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    assert calls.init(stranger, name, two_phase=True).error_code == ErrorCode.NONE


def test_the_right_to_two_phase_commit_alone_is_not_enough(owner: RawClient, stranger: RawClient) -> None:
    name = calls.unique("tx")
    allow(owner, AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    assert calls.init(stranger, name, two_phase=True).error_code == NO_ID


def test_an_endless_transaction_does_not_begin_in_a_topic_that_only_others_may_write_to(
    owner: RawClient, stranger: RawClient
) -> None:
    """KIP-98's attack by somebody with a transactional id of its own: the last stable offset goes on."""
    topic, name = calls.new_topic(owner), calls.unique("tx")
    allow(owner, AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, name)
    producer = calls.new_producer(stranger, name, two_phase=True)
    records = calls.tx_batch([b"endless"], producer)
    assert calls.produce(stranger, topic, records, name, version=12).error_code == NO_TOPIC
    assert set(calls.add(stranger, name, producer, (topic, 0)).values()) == {NO_TOPIC}
    assert calls.produce(owner, topic, calls.batch([b"v"])).error_code == ErrorCode.NONE
    assert calls.read_all(owner, topic) == [b"v"]


def test_a_stolen_identity_commits_no_offsets_of_a_group(owner: RawClient, stranger: RawClient) -> None:
    topic, group = calls.new_topic(owner), calls.unique("group")
    assert offset_calls.commit(owner, group, {(topic, 0): 5}) == [ErrorCode.NONE]
    allow(owner, AclOperation.READ, ResourceType.TOPIC, topic)
    assert offset_calls.commit(stranger, group, {(topic, 0): 1}) == [NO_GROUP]
    offset, *_ = offset_calls.committed(owner, group, (topic, 0))[topic, 0]
    assert offset == 5


def answers_about(stranger: RawClient, name: str) -> list[object]:
    """What a stranger is told about a topic, a group and a transactional id of that name."""
    unknown = ProducerIdentity(1, 0)
    listed: Message = calls.metadata(stranger, name)
    return [
        [(topic.error_code, topic.topic_id, len(topic.partitions)) for topic in listed.topics],
        calls.produce(stranger, name, calls.batch([b"v"])).error_code,
        calls.fetch(stranger, name).error_code,
        calls.list_offset(stranger, name, calls.EARLIEST).error_code,
        calls.describe(stranger, name).error_code,
        calls.end(stranger, name, unknown).error_code,
        offset_calls.commit(stranger, name, {(name, 0): 1}),
        set(admin_calls.delete(stranger, name).values()),
        admin_calls.describe_configs(stranger, 2, name).error_code,
        calls.init(stranger, name).error_code,
    ]


def test_a_stranger_does_not_learn_what_exists(owner: RawClient, stranger: RawClient) -> None:
    mine = Prepared(owner)
    assert calls.init(owner, mine.topic).error_code == ErrorCode.NONE  # a transactional id with the topic's name
    assert offset_calls.commit(owner, mine.topic, {(mine.topic, 0): 1}) == [ErrorCode.NONE]  # and a group
    exists = answers_about(stranger, mine.topic)
    assert exists == answers_about(stranger, "no-such-thing")
    assert mine.commits()


def test_a_stranger_finds_no_topic_of_others_in_the_list(owner: RawClient, stranger: RawClient) -> None:
    mine = Prepared(owner)
    assert mine.topic in {topic.name for topic in owner.ask(calls.all_topics(), 12).topics}
    assert mine.topic not in {topic.name for topic in stranger.ask(calls.all_topics(), 12).topics}
    assert mine.commits()


# --- identities that are easy to guess: producer ids are consecutive, and epochs rise by one


def write_as(
    stranger: RawClient, topic: str, producer: ProducerIdentity, sequence: int = 0, transactional_id: str | None = None
) -> ErrorCode:
    """A batch under ``producer``'s identity, transactional if there is a ``transactional_id``."""
    if transactional_id is None:
        records = calls.batch([b"forged"], producer, sequence)
        return ErrorCode(calls.produce(stranger, topic, records).error_code)
    records = calls.tx_batch([b"forged"], producer, sequence)
    return ErrorCode(calls.produce(stranger, topic, records, transactional_id, version=9).error_code)


@pytest.mark.parametrize("epoch", [0, 1, 32767])
def test_a_forged_batch_does_not_stand_in_for_the_record_of_a_transaction(
    owner: RawClient, stranger: RawClient, epoch: int
) -> None:
    """Taken before the owner's first batch, it would make that one a duplicate, or shut the producer out."""
    topic, name = calls.new_topic(owner), calls.unique("tx")
    producer = calls.new_producer(owner, name, two_phase=True)
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, topic)
    forged = ProducerIdentity(producer.producer_id, epoch)
    assert write_as(stranger, topic, forged) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    calls.open_transaction(owner, name, producer, {(topic, 0): [b"v"]})
    assert calls.end(owner, name, producer).error_code == ErrorCode.NONE
    assert calls.read_all(owner, topic) == [b"v"]


@pytest.mark.parametrize("place", [0, 1], ids=["before its own batch", "behind its own batch"])
def test_a_prepared_transaction_takes_no_record_beside_one_of_another_transaction(
    owner: RawClient, stranger: RawClient, place: int
) -> None:
    """A partition that a request names twice has two batches: each must be of the request's transaction."""
    mine, own_id = Prepared(owner), calls.unique("own")
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, mine.topic)
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, own_id)
    own = calls.new_producer(stranger, own_id)
    batches = [calls.tx_batch([b"own"], own)]
    batches.insert(place, calls.tx_batch([b"forged"], mine.producer, 1))
    request, other = (calls.produce_request({(mine.topic, 0): content}, own_id) for content in batches)
    request.topic_data[0].partition_data += other.topic_data[0].partition_data
    answers = stranger.ask(request, 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert mine.commits()


@pytest.mark.parametrize("epoch", [0, 32767])
def test_a_producer_id_that_was_not_given_out_writes_nothing(owner: RawClient, stranger: RawClient, epoch: int) -> None:
    topic, name = calls.new_topic(owner), calls.unique("tx")
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, topic)
    latest = calls.new_producer(owner, calls.unique("tx"))
    next_one = ProducerIdentity(latest.producer_id + 1, epoch)
    assert write_as(stranger, topic, next_one) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = calls.new_producer(owner, name, two_phase=True)
    assert producer.producer_id == next_one.producer_id
    calls.open_transaction(owner, name, producer, {(topic, 0): [b"v"]})
    assert calls.end(owner, name, producer).error_code == ErrorCode.NONE
    assert calls.read_all(owner, topic) == [b"v"]


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RawClient, RawClient]]:
    """The owner and the stranger on a broker that verifies no transaction of a client of TV1."""
    config = {**CONFIG, "transaction.partition.verification.enable": "false"}
    with ForkedBroker(tmp_path_factory.mktemp("lenient"), config=config) as broker:
        servers = broker.bootstrap_servers
        with RawClient(servers, OWNER) as owner, RawClient(servers, STRANGER) as stranger:
            create(owner, [acl(AclOperation.ALL, kind, name, host=OWNER) for kind, name in RESOURCES])
            yield owner, stranger


@pytest.mark.parametrize(("epoch", "sequence"), [(0, 1), (32767, 0)])
@pytest.mark.parametrize("has_begun", [False, True], ids=["an id that does not exist", "an id of its own"])
def test_a_kept_transaction_takes_no_records_under_another_transactional_id(
    lenient: tuple[RawClient, RawClient], epoch: int, sequence: int, has_begun: bool
) -> None:
    owner, stranger = lenient
    mine, own_id = Prepared(owner), calls.unique("own")
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, mine.topic)
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, own_id)
    if has_begun:
        calls.new_producer(stranger, own_id)
    kept = calls.init(owner, mine.name, two_phase=True, keep=True)
    stolen = ProducerIdentity(mine.producer.producer_id, epoch)
    assert write_as(stranger, mine.topic, stolen, sequence, own_id) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    mine.producer = ProducerIdentity(kept.producer_id, kept.producer_epoch)
    assert mine.commits()


def test_a_kept_transaction_takes_no_offsets_under_another_transactional_id(
    lenient: tuple[RawClient, RawClient],
) -> None:
    owner, stranger = lenient
    topic, group, name, own_id = calls.new_topic(owner), calls.unique("group"), calls.unique("tx"), calls.unique("own")
    for kind, resource in ((ResourceType.TOPIC, topic), (ResourceType.GROUP, group)):
        allow(owner, AclOperation.READ, kind, resource)
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, own_id)
    producer = calls.new_producer(owner, name, two_phase=True)
    assert offset_calls.txn_commit(owner, name, producer, group, {(topic, 0): 5}) == [ErrorCode.NONE]
    kept = calls.init(owner, name, two_phase=True, keep=True)
    refused = offset_calls.txn_commit(stranger, own_id, producer, group, {(topic, 0): 99}, version=4)
    assert refused == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    heir = ProducerIdentity(kept.producer_id, kept.producer_epoch)
    assert calls.end(owner, name, heir).error_code == ErrorCode.NONE
    offset, *_ = offset_calls.committed(owner, group, (topic, 0))[topic, 0]
    assert offset == 5


def test_no_later_epoch_writes_into_an_open_transaction(lenient: tuple[RawClient, RawClient]) -> None:
    """The owner's markers would be left out then, as those of a fenced producer."""
    owner, stranger = lenient
    mine, own_id = Prepared(owner), calls.unique("own")
    allow(owner, AclOperation.WRITE, ResourceType.TOPIC, mine.topic)
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, own_id)
    later = ProducerIdentity(mine.producer.producer_id, 32767)
    assert write_as(stranger, mine.topic, later, 0, own_id) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert mine.commits()


@pytest.mark.parametrize("epoch", [1, 32767])
def test_no_later_epoch_commits_offsets_into_an_open_transaction(
    lenient: tuple[RawClient, RawClient], epoch: int
) -> None:
    owner, stranger = lenient
    topic, group, name, own_id = calls.new_topic(owner), calls.unique("group"), calls.unique("tx"), calls.unique("own")
    for kind, resource in ((ResourceType.TOPIC, topic), (ResourceType.GROUP, group)):
        allow(owner, AclOperation.READ, kind, resource)
    allow(owner, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, own_id)
    producer = calls.new_producer(owner, name, two_phase=True)
    assert offset_calls.txn_commit(owner, name, producer, group, {(topic, 0): 5}) == [ErrorCode.NONE]
    later = ProducerIdentity(producer.producer_id, epoch)
    refused = offset_calls.txn_commit(stranger, own_id, later, group, {(topic, 0): 99}, version=4)
    assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert calls.end(owner, name, producer).error_code == ErrorCode.NONE
    offset, *_ = offset_calls.committed(owner, group, (topic, 0))[topic, 0]
    assert offset == 5


def test_no_marker_ends_a_kept_transaction_that_is_not_of_two_phase_commit(owner: RawClient) -> None:
    topic, name = calls.new_topic(owner), calls.unique("tx")
    producer = calls.new_producer(owner, name)
    calls.open_transaction(owner, name, producer, {(topic, 0): [b"v"]})
    kept = calls.init(owner, name, keep=True)
    marker = marker_calls.marker(producer, (topic, 0))
    assert set(marker_calls.write(owner, marker).values()) == {ErrorCode.INVALID_TXN_STATE}
    assert calls.end(owner, name, ProducerIdentity(kept.producer_id, kept.producer_epoch)).error_code == ErrorCode.NONE
    assert calls.read_all(owner, topic) == [b"v"]


def test_the_coordinators_own_topic_takes_no_marker(owner: RawClient) -> None:
    marker = marker_calls.marker(ProducerIdentity(1, 0), ("__transaction_state", 0))
    assert set(marker_calls.write(owner, marker).values()) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
