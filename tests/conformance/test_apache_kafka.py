"""The Apache Kafka of the comparisons is available, and its tools run."""

from pathlib import Path

import pytest

from dualwrite.wire.apis import ApiKey, ApiVersionsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.jars import require_java
from tests.support.apache_kafka.single_node import ApacheKafka, java_tool
from tests.support.requests.calls import metadata, new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually


@pytest.mark.slow
@pytest.mark.jvm
def test_apache_kafka_serves_transaction_version_2_and_the_unstable_init_producer_id(
    apache_kafka: ApacheKafka,
) -> None:
    with RawClient(apache_kafka.bootstrap_servers) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="tests", client_software_version="1"), 3)
        assert ("transaction.version", 2) in {
            (entry.name, entry.max_version_level) for entry in answer.finalized_features
        }
        assert (ApiKey.INIT_PRODUCER_ID, 6) in {(entry.api_key, entry.max_version) for entry in answer.api_keys}


@pytest.mark.slow
@pytest.mark.jvm
def test_apache_kafkas_tools_see_a_clients_topic(apache_kafka: ApacheKafka) -> None:
    with RawClient(apache_kafka.bootstrap_servers) as client:
        topic = new_topic(client)
        error = eventually(lambda: metadata(client, topic).topics[0].error_code, lambda code: code == ErrorCode.NONE)
    assert error == ErrorCode.NONE, "the controller answers before the broker knows the topic"
    listed = java_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", apache_kafka.bootstrap_servers, "--list"
    )
    assert listed.returncode == 0, listed.stderr
    assert topic in listed.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.jvm
def test_a_setting_that_apache_kafka_refuses_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"num\.partitions"):
        ApacheKafka(tmp_path, {"num.partitions": "none"}).start()


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("kafka", pytest.fail.Exception)])
def test_without_a_jvm_the_suite_is_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DUALWRITE_REQUIRE", required)
    with pytest.raises(outcome, match="no java and no mvn"):
        require_java()
