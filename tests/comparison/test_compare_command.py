"""``dualwrite compare``: what it prints, its exit codes, and its one-line errors."""

import json
import os
import warnings
from pathlib import Path
from unittest.mock import ANY

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from dualwrite.broker.access.acls import AclOperation, ResourceType
from tests.support.comparison.comparison_site import ComparisonSite, pairs
from tests.support.operations.places import command
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, OPEN, PASSWORD, SASL, sasl_broker


@pytest.fixture
def ready(site: ComparisonSite) -> ComparisonSite:
    """Rows 1 to 4."""
    site.create()
    site.insert([1, 2, 3, 4])
    return site


def test_two_sides_that_agree_end_with_0(ready: ComparisonSite) -> None:
    ready.produce(*pairs([1, 2, 3, 4]))
    code, out, err = ready.run()
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "4 rows in table orders",
        f"4 records visible in topic {ready.topic}",
        "both sides are the same",
    ]


def test_two_sides_that_differ_end_with_1_and_their_keys(ready: ComparisonSite) -> None:
    ready.produce(*pairs([3, 3, 4, 4, 5]), (b"\xff\x00", "{}"), ("two\nlines", "{}"))
    code, out, err = ready.run("--limit", "2")
    assert (code, err) == (1, "")
    assert out.splitlines()[2:] == [
        "only in the table: 2 keys",
        "  1  (1 row, 0 records)",
        "  2  (1 row, 0 records)",
        "only in the topic: 3 keys",
        "  5  (0 rows, 1 record)",
        "  0x74776f0a6c696e6573  (0 rows, 1 record)",
        "  and 1 more",
        "not equally often: 2 keys",
        "  3  (1 row, 2 records)",
        "  4  (1 row, 2 records)",
        "THE TWO SIDES DIFFER",
    ]
    assert "  1  (" not in ready.run("--limit", "0").out
    assert "  0x74776f0a6c696e6573  (" in ready.run("--limit", "9" * 20).out


def test_options_choose_what_is_compared(ready: ComparisonSite) -> None:
    ready.produce(*[("k", json.dumps({"order": {"id": key}, "id": key, "item": None})) for key in (1, 1, 2)])
    options = ("--record-key", "order.id", "--where", "id < 3")
    assert ready.run(*options).code == 1
    assert ready.run(*options, "--last").code == 0
    assert ready.run(*options, "--last", "--values").code == 1, "the value has a field that the row has not"


def test_the_output_for_programs_has_every_number(ready: ComparisonSite) -> None:
    ready.sql("INSERT INTO orders VALUES (5, 'x')")
    ready.produce(*pairs([1, 2, 3, 3, 6]), (None, "{}"))
    ready.open_transaction(*pairs([4]))
    code, out, err = ready.run("--json", "--limit", "1")
    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "verdict": "different",
        "rows": 5,
        "records": 6,
        "rows_without_key": 0,
        "records_without_key": 1,
        "first_without_key": [0, 5],
        "after_last_stable_offset": {"0": 1},
        "differing": {
            "only_in_table": 1,
            "only_in_topic": 1,
            "not_equally_often": 1,
            "other_value": 0,
            "unsettled": 1,
        },
        "keys": [
            {"difference": "only_in_table", "key": "5", "rows": 1, "records": 0},
            {"difference": "only_in_topic", "key": "6", "rows": 0, "records": 1},
            {"difference": "not_equally_often", "key": "3", "rows": 1, "records": 2},
            {"difference": "unsettled", "key": "4", "rows": 1, "records": 0},
        ],
        "deleted_before": {},
    }


def test_a_key_that_is_not_settled_leaves_the_result_unknown(ready: ComparisonSite) -> None:
    ready.produce(*pairs([1, 2, 3]))
    ready.open_transaction(*pairs([4]))
    code, out, err = ready.run()
    assert code == 1
    assert out.splitlines()[2:] == [
        "not settled: 1 key",
        "  4  (1 row, 0 records)",
        "not compared: up to 1 record after the last stable offset of partition 0",
        "NOT KNOWN whether both sides are the same",
    ]
    assert "see dualwrite transactions list" in err
    assert json.loads(ready.run("--json").out)["verdict"] == "unknown"


def test_records_after_the_last_stable_offset_leave_the_result_unknown(ready: ComparisonSite) -> None:
    ready.produce(*pairs([1, 2, 3, 4]))
    hanging = ready.open_transaction(("x", "{}"), partition=1)
    ready.produce(*pairs([1]), partition=1)
    code, out, err = ready.run()
    assert code == 1
    assert out.splitlines()[2:] == [
        "not compared: up to 3 records after the last stable offset of partition 1",
        "NOT KNOWN whether both sides are the same",
    ]
    assert "see dualwrite transactions list" in err
    hanging.abort_transaction()
    code, out, err = ready.run("--json")
    assert (code, json.loads(out)["verdict"], err) == (1, "different", "")


def test_lost_records_are_named_as_a_possible_reason(ready: ComparisonSite) -> None:
    ready.produce(*pairs([1, 2, 3, 4]))
    ready.delete_records(before=2)
    code, out, err = ready.run()
    assert (code, out.count("only in the table: 2 keys")) == (1, 1)
    assert err == "dualwrite: the topic has lost its records before offset 2 of partition 0\n"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "not compared: 1 row with NULL or invalid Unicode in id"),
        (
            ("--where", "id IS NOT NULL"),
            "not compared: 1 record without a key; the first at offset 1 of partition 0",
        ),
        (
            ("--where", "0 = 1", "--record-key", "a.b"),
            "not compared: 2 records without a.b in a readable JSON value; the first at offset 0 of partition 0",
        ),
    ],
)
def test_what_cannot_be_compared_is_counted(site: ComparisonSite, options: tuple[str, ...], line: str) -> None:
    site.create("id INTEGER")
    site.sql("INSERT INTO orders VALUES (1), (NULL)")
    site.produce(("1", "{}"), (None, "[]"))
    code, out, _ = site.run(*options)
    assert code == 1
    assert line in out.splitlines()
    assert out.endswith("NOT KNOWN whether both sides are the same\n")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--table", "order"), "the database has no table 'order'"),
        (("--key", "order_id"), "table orders has no column 'order_id'; it has id, item"),
        (("--key", ""), "--key: name a column, or several with commas between them"),
        (("--key", "id,"), "--key: name a column, or several with commas between them"),
        (("--key", "id,item"), "--key id,item: several columns have no agreed form as a record's key; name the fields"),
        (("--record-key", "a,b"), "--record-key names 2 fields and --key 1 columns: name a field for each column"),
        (("--record-key", ""), "--record-key: name a field of the value, or several with commas between them"),
        (("--topic", "no topic"), "--topic 'no topic': this is not a topic's name"),
        (("--topic", "missing"), "the cluster has no topic 'missing', or hides it from this client"),
        (("--wait", "-1"), "--wait -1: use 0 or more seconds"),
        (("--wait", "nan"), "--wait nan: use 0 or more seconds"),
        (("--limit", "-1"), "--limit -1: use 0 or more"),
        (("--where", "nothing = 1"), "database sqlite:///"),
        (("--where", "id = ("), "database sqlite:///"),
        (("--db", "sqlite:////nowhere/app.db"), "database sqlite:////nowhere/app.db: there is no directory /nowhere"),
        (("-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
        (("-X", "linger.ms=x"), "-X: linger.ms 'x': allowed: 0 to 900000"),
    ],
)
def test_a_mistake_is_one_line(ready: ComparisonSite, options: tuple[str, ...], complaint: str) -> None:
    code, out, err = ready.run(*options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {complaint}")


def test_a_missing_topic_is_not_created(ready: ComparisonSite) -> None:
    name = fresh_name()
    assert ready.run("--topic", name).code == 2
    assert name not in AdminClient(ready.broker.client_config).list_topics(timeout=PATIENCE).topics


@pytest.mark.slow
def test_a_broker_that_does_not_run_is_one_line(ready: ComparisonSite) -> None:
    code, out, err = ready.run(bootstrap="127.0.0.1:1")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_full_disk_is_one_line(ready: ComparisonSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.comparison.seen_keys.SETTINGS", ("max_page_count = 5",))
    ready.insert(range(10, 2000))
    code, _, err = ready.run()
    assert (code, err.count("\n")) == (2, 1)
    assert "temporary file: database or disk is full; name a directory with more space in SQLITE_TMPDIR" in err


@pytest.mark.postgresql
def test_a_column_of_an_unknown_type_is_no_warning(postgresql_url: str, ready: ComparisonSite) -> None:
    site = ComparisonSite(postgresql_url, ready.broker)
    site.create("id INTEGER, place POINT")
    site.sql("INSERT INTO orders VALUES (1, '(1,2)')")
    site.produce(("1", '{"id": 1, "place": "(1,2)"}'))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert site.run("--values") == (0, ANY, "")
    site.close()


@pytest.mark.postgresql
def test_a_table_that_may_not_be_read_is_one_line(postgresql_url: str, ready: ComparisonSite) -> None:
    site = ComparisonSite(postgresql_url, ready.broker)
    site.create()
    role = fresh_name().replace("-", "_")
    site.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        other = site.engine.url.set(username=role, password="x").render_as_string(hide_password=False)
        code, _, err = site.run("--db", other)
        assert (code, err.count("\n")) == (2, 1)
        assert "permission denied for table orders" in err
        assert ":x@" not in err
    finally:
        site.sql(f"DROP ROLE {role}")
        site.close()


def test_a_client_needs_the_right_to_read_the_topic_and_no_other(ready: ComparisonSite, tmp_path: Path) -> None:
    config = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={ALICE}\nsasl.password={PASSWORD}\ncompression.type=lz4\n"
    )
    with sasl_broker(tmp_path / "broker", **config) as broker:
        with RawClient(broker.listeners[OPEN]) as admin:
            topic = new_topic(admin)
            produce(broker.listeners[OPEN], topic, "1")
            words = ("--topic", topic, "--command-config", str(settings))
            hidden = ready.run(*words, bootstrap=broker.listeners[SASL])
            create(admin, [acl(AclOperation.DESCRIBE, ResourceType.TOPIC, topic, principal=f"User:{ALICE}")])
            refused = ready.run(*words, bootstrap=broker.listeners[SASL])
            create(admin, [acl(AclOperation.READ, ResourceType.TOPIC, topic, principal=f"User:{ALICE}")])
        code, out, err = ready.run(*words, bootstrap=broker.listeners[SASL])
    for each in (hidden, refused):
        assert (each.code, each.out, each.err.count("\n")) == (2, "", 1)
        assert topic in each.err
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.err
    assert (code, err) == (1, "")
    assert "only in the table: 3 keys" in out


def produce(bootstrap: str, topic: str, key: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, key=key, value="{}")
    assert producer.flush(PATIENCE) == 0


def test_nothing_is_written(ready: ComparisonSite, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    ready.run()
    assert sorted(os.listdir(tmp_path)) == before
    admin = AdminClient(ready.broker.client_config)  # without a name it is gone, perhaps before the answer comes
    assert admin.list_consumer_groups(request_timeout=PATIENCE).result(PATIENCE).valid == []


@pytest.mark.parametrize("option", ["--db", "--table", "--topic", "--key", "--bootstrap-servers"])
def test_an_option_that_is_missing_is_named(option: str) -> None:
    given = [word for name in ("--db", "--table", "--topic", "--key", "--bootstrap-servers") for word in (name, "x")]
    at = given.index(option)
    result = command("compare", *given[:at], *given[at + 2 :])
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert option in result.err
