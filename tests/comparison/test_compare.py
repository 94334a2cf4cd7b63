"""What the comparison of a table with a topic finds, and what it does not count as a difference."""

import json
from contextlib import suppress

import pytest
from sqlalchemy import text

from dualwrite.comparison.job import Difference, Verdict
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.schema import upgrade_engine
from tests.support.comparison.comparison_site import ComparisonSite, found, pairs
from tests.support.peer_clients.kafka_helpers import fresh_name

ONLY_IN_TABLE, ONLY_IN_TOPIC, NOT_EQUALLY_OFTEN, OTHER_VALUE, UNSETTLED = Difference


@pytest.mark.slow_cases
def test_a_naive_pair_that_dies_between_its_two_writes_is_found_and_a_unit_of_work_is_not(
    any_site: ComparisonSite,
) -> None:
    any_site.create()
    upgrade_engine(any_site.engine)
    insert = text("INSERT INTO orders (id) VALUES (:id)")
    with DualWrite(any_site.engine, any_site.broker.client_config, application=fresh_name()) as dual_write:
        for number in (1, 2):
            with dual_write.transaction() as tx:
                tx.execute(insert, {"id": number})
                tx.produce(any_site.topic, b"{}", key=str(number))
        with suppress(ZeroDivisionError), dual_write.transaction() as tx:
            tx.execute(insert, {"id": 3})
            tx.produce(any_site.topic, b"{}", key="3")
            raise ZeroDivisionError
    assert found(any_site.compare()) == {}
    any_site.insert([4])  # and the process dies before it produces
    any_site.produce(("5", "{}"))  # and the process dies before it commits
    any_site.produce(("2", "{}"))  # a second time, as no answer came
    assert found(any_site.compare()) == {ONLY_IN_TABLE: ["4"], ONLY_IN_TOPIC: ["5"], NOT_EQUALLY_OFTEN: ["2"]}


@pytest.mark.slow_cases
def test_records_of_aborted_transactions_are_not_there(any_site: ComparisonSite) -> None:
    any_site.create()
    any_site.insert([1, 2])
    any_site.produce(*pairs([1]))
    any_site.open_transaction(*pairs([1, 2, 3])).abort_transaction()
    result = any_site.compare()
    assert (result.rows, result.records) == (2, 1)
    assert found(result) == {ONLY_IN_TABLE: ["2"]}


def test_two_empty_sides_are_the_same(any_site: ComparisonSite) -> None:
    any_site.create()
    result = any_site.compare()
    assert (result.rows, result.records, result.verdict) == (0, 0, Verdict.SAME)


ROWS = {1: "tea", 2: "coffee", 3: None}


@pytest.mark.parametrize(
    ("records", "differences"),
    [
        ([*ROWS.items()], {}),
        ([(1, "tea"), (2, "coffee")], {ONLY_IN_TABLE: ["3"]}),
        ([*ROWS.items(), (1, "tea")], {NOT_EQUALLY_OFTEN: ["1"]}),
        ([*ROWS.items(), (4, "milk")], {ONLY_IN_TOPIC: ["4"]}),
        ([(1, "tea"), (2, "water"), (3, None)], {OTHER_VALUE: ["2"]}),
        (
            [(1, "tea"), (1, "tea"), (2, "water"), (5, "x")],
            {ONLY_IN_TABLE: ["3"], ONLY_IN_TOPIC: ["5"], NOT_EQUALLY_OFTEN: ["1"], OTHER_VALUE: ["2"]},
        ),
    ],
)
def test_each_difference_is_counted(
    site: ComparisonSite, records: list[tuple[int, str | None]], differences: dict[Difference, list[str]]
) -> None:
    site.create()
    site.sql("INSERT INTO orders VALUES (1, 'tea'), (2, 'coffee'), (3, NULL)")
    site.produce(*[(str(key), json.dumps({"item": item, "id": key})) for key, item in records])
    result = site.compare(values=True)
    assert (result.rows, result.records) == (3, len(records))
    assert found(result) == differences
    assert result.verdict is (Verdict.DIFFERENT if differences else Verdict.SAME)
    without_values = {difference: keys for difference, keys in differences.items() if difference is not OTHER_VALUE}
    assert found(site.compare()) == without_values


@pytest.mark.parametrize("poison", ['{"id": "\\ud800"}', "[" * 100_000, '{"id": ' + "[" * 100_000, b"\xff", "7"])
def test_a_record_whose_key_cannot_be_read_is_counted_and_spoils_no_other(
    site: ComparisonSite, poison: str | bytes
) -> None:
    site.create("id TEXT")
    site.sql("INSERT INTO orders VALUES ('a'), ('b')")
    site.produce(("k", '{"id": "a"}'), ("k", poison), ("k", poison), ("k", '{"id": "c"}'))
    result = site.compare(record_key=["id"])
    assert found(result) == {ONLY_IN_TABLE: ["b"], ONLY_IN_TOPIC: ["c"]}
    assert (result.records, result.records_without_key, result.first_without_key) == (4, 2, (0, 1))


@pytest.mark.parametrize(
    "value", ["not JSON", '{"id": 1}', '{"id": 1, "item": "tea", "more": 0}', "[]", b"\xff", "[" * 100_000, "null"]
)
def test_a_value_that_is_not_the_row_differs(site: ComparisonSite, value: str | bytes) -> None:
    site.create()
    site.sql("INSERT INTO orders VALUES (1, 'tea')")
    site.produce(("1", value))
    assert found(site.compare(values=True)) == {OTHER_VALUE: ["1"]}
    assert found(site.compare(values=True, last=True)) == {OTHER_VALUE: ["1"]}


def test_a_tombstone_deletes_the_records_before_it(site: ComparisonSite) -> None:
    site.create()
    site.insert([1, 2, 3])
    site.produce(*pairs([1, 2, 3, 4]), ("1", None), ("4", None), ("2", None), ("2", "{}"), ("5", None))
    assert found(site.compare()) == {ONLY_IN_TABLE: ["1"]}
    assert found(site.compare(last=True)) == {ONLY_IN_TABLE: ["1"]}


def test_a_tombstone_deletes_nothing_in_another_partition(site: ComparisonSite) -> None:
    site.create()
    site.insert([1])
    site.produce(("1", "{}"), partition=0)
    site.produce(("1", None), partition=1)
    assert found(site.compare()) == {}


def test_a_changelog_is_compared_by_its_last_records(site: ComparisonSite) -> None:
    site.create()
    site.sql("INSERT INTO orders VALUES (1, 'tea'), (2, 'coffee')")
    values = [(1, "milk"), (1, "tea"), (2, "coffee"), (2, "water")]
    site.produce(*[(str(key), json.dumps({"id": key, "item": item})) for key, item in values])
    assert found(site.compare()) == {NOT_EQUALLY_OFTEN: ["1", "2"]}
    assert found(site.compare(last=True)) == {}
    assert found(site.compare(last=True, values=True)) == {OTHER_VALUE: ["2"]}


def test_a_key_of_many_rows_has_as_many_records(site: ComparisonSite) -> None:
    site.create("id INTEGER")
    site.insert([1, 1, 2, 2])
    site.produce(*pairs([1, 1, 2]))
    result = site.compare()
    assert found(result) == {NOT_EQUALLY_OFTEN: ["2"]}
    assert [(example.rows, example.records) for example in result.examples] == [(2, 1)]
    assert found(site.compare(last=True)) == {}


def test_every_partition_is_read(site: ComparisonSite) -> None:
    site.create()
    site.insert(range(20))
    for partition in (0, 1):
        site.produce(*pairs(range(partition, 20, 2)), partition=partition)
    assert site.compare().verdict is Verdict.SAME


def test_a_key_may_be_a_field_of_the_value(any_site: ComparisonSite) -> None:
    any_site.create()
    any_site.insert([1, 2, 3])
    values = ['{"order": {"id": 1}}', '{"order": {"id": "2"}}', '{"order": 3}', '{"order": {"id": null}}', "x", None]
    any_site.produce(*[(None, value) for value in values])
    result = any_site.compare(record_key=["order.id"])
    assert result.records_without_key == 4
    assert found(result) == {ONLY_IN_TABLE: ["3"]}


def test_a_key_of_several_columns_is_compared_with_as_many_fields(any_site: ComparisonSite) -> None:
    any_site.create("shop VARCHAR(9), number INTEGER")
    any_site.sql("INSERT INTO orders VALUES ('a', 1), ('a', 2), ('b', 1), (NULL, 3)")
    any_site.produce(*[(None, json.dumps({"n": n, "shop": shop})) for shop, n in (("a", 1), ("b", 1), ("b", 2))])
    result = any_site.compare("shop", "number", record_key=["shop", "n"])
    assert found(result) == {ONLY_IN_TABLE: ['["a", "2"]'], ONLY_IN_TOPIC: ['["b", "2"]']}
    assert (result.rows, result.rows_without_key) == (4, 1)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "where", ["id < 3", "id < 3 OR id = 2", "id < 3 -- a comment", "item IS NULL OR item = ':id %s'", "item LIKE '%d'"]
)
def test_a_condition_chooses_the_rows(any_site: ComparisonSite, where: str) -> None:
    any_site.create()
    any_site.sql("INSERT INTO orders VALUES (1, NULL), (3, 'x')")
    with any_site.engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (2, :item)"), {"item": ":id %s"})
    any_site.produce(*pairs([1, 2]))
    expected = {ONLY_IN_TOPIC: ["1", "2"]} if "LIKE" in where else {}
    assert found(any_site.compare(where=where)) == expected


def test_what_has_no_key_is_counted_and_leaves_the_result_unknown(any_site: ComparisonSite) -> None:
    any_site.create("id INTEGER")
    any_site.sql("INSERT INTO orders VALUES (1), (NULL), (NULL)")
    any_site.produce(("1", "{}"))
    result = any_site.compare()
    assert (result.rows, result.rows_without_key, result.records_without_key) == (3, 2, 0)
    assert result.verdict is Verdict.UNKNOWN
    any_site.produce((None, "{}"))
    result = any_site.compare(where="id IS NOT NULL")
    assert (result.rows, result.rows_without_key, result.records_without_key) == (1, 0, 1)
    assert result.first_without_key is not None
    assert result.verdict is Verdict.UNKNOWN


def test_an_empty_key_is_a_key(site: ComparisonSite) -> None:
    site.create("id VARCHAR(9)")
    site.sql("INSERT INTO orders VALUES ('')")
    assert found(site.compare()) == {ONLY_IN_TABLE: [""]}
    site.produce(("", "{}"))
    assert found(site.compare()) == {}


def test_a_view_and_a_table_of_a_schema_are_compared(site: ComparisonSite) -> None:
    site.create()
    site.insert([1])
    site.sql("CREATE VIEW open_orders AS SELECT id FROM orders")
    site.produce(*pairs([1]))
    for name in ("open_orders", "main.orders"):
        assert site.run("--table", name).code == 0


def test_the_first_offset_is_named_if_the_log_has_lost_its_beginning(site: ComparisonSite) -> None:
    site.create()
    site.produce(*pairs(range(5)))
    assert site.compare().deleted_before == {}
    site.delete_records(before=3)
    result = site.compare()
    assert (result.records, result.deleted_before) == (2, {0: 3})
