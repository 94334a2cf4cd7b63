"""Which APIs are audited, and what the lines of their acts may contain."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.api.auditing.act import Act, all_ranges, ranges
from dualwrite.broker.api.auditing.acts import ACTS
from dualwrite.broker.api.auditing.audit_log import AUDIT_LOGGER, audit
from dualwrite.broker.api.context import Client
from dualwrite.broker.api.routes import ROUTES
from dualwrite.ids import ProducerIdentity
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import (
    ApiKey,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.in_process import InProcessBroker
from tests.support.broker.simulated import Rooms, run
from tests.support.requests.marker_calls import marker

READING = {
    *(ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH),
    *(ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    *(ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER),
    *(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES),
    *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    *(ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLIENT_QUOTAS),
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
}
PRODUCING_AND_CONSUMING = {
    *(ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN),
    *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP),
    *(
        ApiKey.HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    ),
}
EVIL = "x\n2026-01-01 00:00:00,000 INFO dualwrite.broker.audit: principal='User:admin'\r\x1b[2K"


def test_every_api_is_audited_or_changes_nothing_of_the_administrators() -> None:
    """A new API must be put into one of the three."""
    others = READING | PRODUCING_AND_CONSUMING
    assert set(ROUTES) == set(ACTS) | others
    assert not set(ACTS) & others
    assert {key for key, route in ROUTES.items() if route.acts is not None} == set(ACTS)


def test_the_value_of_an_accepted_setting_is_shown_only_if_it_cannot_be_a_secret() -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    values = {"log.retention.ms": "17", "retention.ms": "18", "ssl.key.password": "hunter2", "unknown": "hunter3"}
    configs = [resource.AlterableConfig(name=name, config_operation=0, value=text) for name, text in values.items()]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=4, resource_name="0", configs=configs)], validate_only=False
    )
    done = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=0, error_message=None, resource_type=4, resource_name="0"
    )
    answer = IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[done])
    (act,) = ACTS[ApiKey.INCREMENTAL_ALTER_CONFIGS](request, answer)
    assert act.detail == (
        "set log.retention.ms=17 set retention.ms=18 set ssl.key.password=[hidden] set unknown=[hidden]"
    )


def test_markers_of_one_producer_that_differ_are_told_apart() -> None:
    producer = ProducerIdentity(7, 0)
    markers = [marker(producer, ("t", 0), commit=True), marker(producer, ("t", 1))]
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = result.WritableTxnMarkerTopicResult
    partitions = [topic.WritableTxnMarkerPartitionResult(partition_index=index, error_code=0) for index in (0, 1)]
    answer = WriteTxnMarkersResponse(markers=[result(producer_id=7, topics=[topic(name="t", partitions=partitions)])])
    assert list(ACTS[ApiKey.WRITE_TXN_MARKERS](WriteTxnMarkersRequest(markers=markers), answer)) == [
        Act("commit transaction", "topic", "t", ErrorCode.NONE, "producer id=7 partitions=0"),
        Act("abort transaction", "topic", "t", ErrorCode.NONE, "producer id=7 partitions=1"),
    ]


def lines(caplog: pytest.LogCaptureFixture, acts: list[Act], client: Client) -> list[logging.LogRecord]:
    caplog.clear()
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        asyncio.run(audit(acts, client))
    return [record for record in caplog.records if record.name == AUDIT_LOGGER]


def test_names_that_contain_a_line_end_write_no_line(caplog: pytest.LogCaptureFixture) -> None:
    act = Act("delete group", "group", EVIL, ErrorCode.NONE, EVIL)
    (record,) = lines(caplog, [act], Client(EVIL, "/127.0.0.1", f"User:{EVIL}"))
    assert "\n" not in record.getMessage()
    assert record.getMessage().isprintable()


def test_long_names_are_shortened(caplog: pytest.LogCaptureFixture) -> None:
    act = Act("delete group", "group", "g" * 32_000, ErrorCode.NONE)
    (record,) = lines(caplog, [act], Client("c" * 32_000, "/127.0.0.1", "User:" + "u" * 32_000))
    assert len(record.getMessage()) < 2_000


def test_no_change_hides_behind_a_long_one(caplog: pytest.LogCaptureFixture) -> None:
    """What was done is told whole; a value is shortened by itself."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    values = {"leader.replication.throttled.replicas": "0:" * 5_000, "retention.ms": "1"}
    configs = [resource.AlterableConfig(name=name, config_operation=0, value=text) for name, text in values.items()]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=2, resource_name="t", configs=configs)], validate_only=False
    )
    done = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=0, error_message=None, resource_type=2, resource_name="t"
    )
    answer = IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[done])
    (record,) = lines(caplog, list(ACTS[ApiKey.INCREMENTAL_ALTER_CONFIGS](request, answer)), Client("c", "/h"))
    assert record.getMessage().endswith(" set retention.ms=1'")
    assert len(record.getMessage()) < 1_000


def test_all_partitions_of_what_was_done_are_named(caplog: pytest.LogCaptureFixture) -> None:
    topic = DeleteRecordsResponse.DeleteRecordsTopicResult
    entries = [
        topic.DeleteRecordsPartitionResult(partition_index=index, low_watermark=index % 3 - 1, error_code=error)
        for index in range(0, 400, 2)
        for error in [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if index % 3 == 0 else ErrorCode.NONE]
    ]
    answer = DeleteRecordsResponse(throttle_time_ms=0, topics=[topic(name="t", partitions=entries)])
    request = DeleteRecordsRequest(topics=[], timeout_ms=0)
    done, refused = lines(caplog, list(ACTS[ApiKey.DELETE_RECORDS](request, answer)), Client("c", "/h"))
    parts = done.__dict__["fields"]["detail"].split("; ")
    assert parts == [
        f"partitions={all_ranges(range(2, 400, 6))} before=1",
        f"partitions={all_ranges(range(4, 400, 6))} before=0",
    ]
    assert refused.__dict__["fields"]["detail"] == f"partitions={ranges(range(0, 400, 6))}"


def test_all_that_was_done_is_named_and_refusals_alike_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    done = [Act("delete topic", "topic", f"t{number}", ErrorCode.NONE) for number in range(120)]
    refused = [Act("delete topic", "topic", f"r{number}", ErrorCode.INVALID_REQUEST) for number in range(1000)]
    others = [Act("delete topic", "topic", "u", ErrorCode.UNKNOWN_TOPIC_ID, "detail")]
    records = lines(caplog, [*refused, *done, *others], Client("c", "/h"))
    resources = [record.__dict__["fields"]["resource"] for record in records]
    assert resources[:120] == [act.resource for act in done]
    assert resources[120:] == [", ".join(f"r{number}" for number in range(10)) + " and 990 more", "u"]
    assert records[-1].__dict__["fields"]["detail"] == "detail"
    assert [record.levelno for record in records[118:]] == [logging.INFO] * 2 + [logging.WARNING] * 2


def test_a_topic_that_metadata_creates_is_logged_once_it_is_durable() -> None:
    async def main() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())

        class Watching(logging.Handler):
            def emit(self, _: logging.LogRecord) -> None:
                waits.append(broker.rooms.flusher.must_wait)

        waits: list[bool] = []
        audit_log, handler = logging.getLogger(AUDIT_LOGGER), Watching()
        audit_log.setLevel(logging.INFO)
        audit_log.addHandler(handler)
        try:
            topic = MetadataRequest.MetadataRequestTopic(name="new", topic_id=None)
            request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
            (described,) = (await broker.connect("127.0.0.1").ask(request, 12)).topics
        finally:
            audit_log.removeHandler(handler)
            audit_log.setLevel(logging.NOTSET)
        assert (described.error_code, waits) == (ErrorCode.NONE, [False])
        await broker.close()

    run(main())


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([2, 1, 0, 7], "0-2,7"), ([5, 5, 6], "5-6"), (range(0, 100, 2), None)],
)
def test_partitions_are_shown_as_ranges(numbers: list[int], text: str | None) -> None:
    assert ranges(numbers) == text if text is not None else ranges(numbers).endswith(",38,…")


@pytest.mark.slow
@given(st.sets(st.integers(0, 30), max_size=20))
def test_ranges_hold_just_the_numbers(numbers: set[int]) -> None:
    read: set[int] = set()
    for part in filter(None, ranges(numbers).split(",")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == numbers
