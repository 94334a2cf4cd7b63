"""How options are read: names of either kind, values of either kind, and one line for each mistake."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.options import OPTIONS, WriteOptions, batch_id_of, options_of
from tests.support.spark.expected_rows import REQUIRED, options


def test_the_required_options_suffice() -> None:
    assert options_of(REQUIRED) == WriteOptions(
        REQUIRED["url"], "orders", "nightly", (("bootstrap.servers", "broker:9092"),)
    )


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.default is not None], ids=lambda o: o.name)
def test_the_documented_default_is_the_default(option: Any) -> None:
    assert getattr(options_of({**REQUIRED, option.name: option.default}), option.keyword) == getattr(
        options_of(REQUIRED), option.keyword
    )


@pytest.mark.parametrize(
    ("name", "value", "keyword", "read"),
    [
        ("topic", "orders.v1", "topic", "orders.v1"),
        ("batchId", "7", "batch_id", 7),
        ("batch_id", 0, "batch_id", 0),
        ("upsertKeys", "id, line", "upsert_keys", ("id", "line")),
        ("upsert_keys", ["id", "a,b"], "upsert_keys", ("id", "a,b")),
        ("upsert_keys", [], "upsert_keys", ()),
        ("COLUMNS.TABLE", "id", "table_columns", ("id",)),
        ("columns.value", "id,note", "value_columns", ("id", "note")),
        ("batchSize", "500", "batchsize", 500),
        ("poolsize", 4, "pool_size", 4),
        ("acquireTimeout", "1.5", "acquire_timeout", 1.5),
        ("leaseTimeout", 3, "lease_timeout", 3.0),
        ("databaseTimeout", 3, "database_timeout", 3.0),
        ("producer", "native", "producer", "native"),
        ("twoPhase", "resume", "two_phase", "resume"),
        ("job", "orders-2026", "job", "orders-2026"),
        ("job", None, "job", None),
        ("checkpointLocation", "/tmp/x", "job", None),
        ("queryname", "orders", "job", None),
    ],
)
def test_an_option_is_read(name: str, value: Any, keyword: str, read: Any) -> None:
    assert getattr(options_of({**REQUIRED, name: value}), keyword) == read


def test_kafkas_settings_are_one_mapping_or_one_option_each_and_always_texts() -> None:
    given = {key: value for key, value in REQUIRED.items() if not key.startswith("kafka")}
    expected = {"bootstrap.servers": "b:1", "enable.idempotence": "true", "linger.ms": "5"}
    one = options_of({**given, "kafka": {"bootstrap.servers": "b:1", "enable.idempotence": True, "linger.ms": 5}})
    each = options_of(
        {**given, "kafka.linger.ms": "5", "Kafka.bootstrap.servers": "b:1", "kafka.enable.idempotence": "true"}
    )
    assert one == each
    assert one.kafka_config == expected
    assert hash(one) == hash(each)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dbtabel": "x"}, "there is no option 'dbtabel': did you mean 'dbtable'?"),
        ({"upsertKey": "x"}, "there is no option 'upsertKey': did you mean 'upsertKeys'?"),
        ({"path": "/x"}, "there is no option 'path': there are url, dbtable, application, topic, job"),
        ({"url": None}, "option 'url' is missing: the database, as SQLAlchemy's URL"),
        ({"dbtable": None}, "option 'dbtable' is missing"),
        ({"application": None}, "option 'application' is missing"),
        ({"upsert_keys": "a", "upsertKeys": "b"}, "option 'upsertKeys' is given twice"),
        ({"KAFKA.bootstrap.servers": "x:1"}, "option 'KAFKA.bootstrap.servers' is given twice"),
        ({"kafka": {"bootstrap.servers": "x:1"}}, "option 'kafka.bootstrap.servers' is given twice"),
        ({"kafka": {"oauth_cb": print}}, "option 'kafka.oauth_cb': a builtin_function_or_method cannot be sent to the"),
        (
            {"url": "jdbc:postgresql://db/orders"},
            "option 'url': this is a JDBC URL; use a SQLAlchemy URL, such as postgresql+",
        ),
        ({"url": "secret"}, "option 'url': use a SQLAlchemy URL, such as postgresql+psycopg:"),
        ({"dbtable": " "}, "option 'dbtable' ' ': use a text that is not empty"),
        ({"topic": "a b"}, "option 'topic' 'a b': use 1 to 249 letters, digits, dots"),
        ({"value_columns": []}, "option 'columns.value': name a column, or leave the option out"),
        ({"table_columns": {"id", "note"}}, "option 'columns.table': a set has no order; use a list"),
        ({"batchId": "-1"}, "option 'batchId' '-1': use 0 or more"),
        ({"batchId": 2**63}, "option 'batchId' 9223372036854775808: use at most 9223372036854775807"),
        ({"batchId": True}, "option 'batchId' True: use a whole number"),
        ({"batchsize": "many"}, "option 'batchsize' 'many': use a whole number"),
        ({"batchsize": 1.5}, "option 'batchsize' 1.5: use a whole number"),
        ({"poolSize": "0"}, "option 'poolSize' '0': use 1 or more"),
        ({"acquireTimeout": "0"}, "option 'acquireTimeout' '0': use a number of seconds above 0"),
        ({"acquireTimeout": "nan"}, "option 'acquireTimeout' 'nan': use a number of seconds above 0"),
        ({"leaseTimeout": "soon"}, "option 'leaseTimeout' 'soon': use a number of seconds"),
        ({"upsertKeys": "a,,b"}, "option 'upsertKeys' 'a,,b': use names of columns, separated by commas"),
        ({"upsertKeys": "a,a"}, "option 'upsertKeys' 'a,a': a column is named twice"),
        ({"upsertKeys": 7}, "option 'upsertKeys' 7: "),
        ({"producer": "java"}, "option 'producer' 'java': use 'native' or 'librdkafka'"),
        ({"twoPhase": "maybe"}, "option 'twoPhase' 'maybe': use 'keep-prepared' or 'resume'"),
        ({"batchId": {"url": "postgresql://u:secret@db/x"}}, "option 'batchId': use a whole number"),
        ({"dbtable": "postgresql://u:secret@db/x"}, "option 'dbtable': this is a URL; use table or schema.table"),
        ({"topic": "postgresql://u:secret@db/x"}, "option 'topic': use 1 to 249 letters"),
        ({"url": "JDBC:postgresql://db/orders"}, "option 'url': this is a JDBC URL; use a SQLAlchemy URL"),
        ({"url": "postgres://u:secret@db/x"}, "option 'url': write postgresql+psycopg: instead of postgres:"),
        ({"kafka": "h:1"}, "there is no option 'kafka': write 'kafka.bootstrap.servers', or kafka={'bootstrap.serv"),
        ({"bootstrap.servers": "h:1"}, "there is no option 'bootstrap.servers': write 'kafka.bootstrap.servers'"),
        ({"job": "nightly "}, "option 'job' 'nightly ': remove the spaces at its ends"),
        ({"job": "x" * 256}, "use at most 255 printable characters"),
        ({"job": "a\nb"}, "use at most 255 printable characters"),
    ],
)
def test_a_mistake_is_named_in_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        options_of({**REQUIRED, **changed})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_broker_is_required() -> None:
    given = {key: value for key, value in REQUIRED.items() if not key.startswith("kafka")}
    with pytest.raises(ConfigurationError, match=r"option 'kafka.bootstrap.servers' is missing: HOST:PORT"):
        options_of(given)


def test_a_job_is_required_where_something_must_not_happen_twice() -> None:
    assert options(job="nightly").require_job() == "nightly"
    with pytest.raises(ConfigurationError, match="option 'job' is missing: a name that is unique in the database"):
        options().require_job()


def test_passwords_are_not_shown() -> None:
    shown = repr(options(**{"kafka.sasl.password": "hidden"}))
    assert "secret" not in shown
    assert "hidden" not in shown
    assert "dbtable='orders'" in shown


def test_options_reach_an_executor() -> None:
    sent = options(upsertKeys="id", **{"kafka.linger.ms": "5"})
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_the_page_has_every_option_with_default_and_description() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        default = "required" if option.is_required else f"`{option.default}`" if option.default else ""
        assert f"| `{option.name}` | `{option.keyword}` | {default} | {option.doc} |" in page


def test_a_batchs_number_is_read_as_the_option_is() -> None:
    assert [batch_id_of(given) for given in (7, "7", 0)] == [7, 7, 0]
    for given in (None, "x", True, -1, {}):
        with pytest.raises(ConfigurationError, match=r"^option 'batchId'"):
            batch_id_of(given)
