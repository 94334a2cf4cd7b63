"""Texts that end a unit's transaction are told from those that only have such a word in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.coordinator.rules.transaction_statements import STANDARD, TransactionGrammar, ends_transaction
from dualwrite.coordinator.sql.dialects.mysql.implicit_commits import GRAMMAR as MYSQL
from dualwrite.coordinator.sql.dialects.postgresql.refused_statements import GRAMMAR as POSTGRESQL

EVERYWHERE = [STANDARD, MYSQL, POSTGRESQL]


@pytest.mark.parametrize("grammar", EVERYWHERE)
@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        "select 1; commit; select 2",
        "select 1;\n-- and then\nROLLBACK",
        "select 1 /* ; */ ; /* now */ commit",
        "insert into t values ('it''s; here'); COMMIT",
        'select "a;b" ; start transaction',
        "select 1;;; end",
        "select 1; savepoint a; rollback to a; commit",
    ],
)
def test_a_statement_behind_another_one_is_seen(grammar: TransactionGrammar, text: str) -> None:
    assert ends_transaction(grammar, text)


@pytest.mark.parametrize("grammar", EVERYWHERE)
@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "select 1; select 2;",
        "select '; commit'",
        "select 'it''s; commit'",
        'select "; commit"',
        "select 1 -- ; commit",
        "select 1 -- here\n; select 2 -- ; commit",
        "select 1 /* ; commit */",
        "select 1; rollback to savepoint a; update t set a = 1",
        "select 1; select committed from t",
    ],
)
def test_a_word_in_a_string_or_a_comment_is_no_statement(grammar: TransactionGrammar, text: str) -> None:
    assert not ends_transaction(grammar, text)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (STANDARD, "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET c = 1; END"),
        (STANDARD, "select 1; create trigger t after insert on a begin update b set c = 1; end"),
        (STANDARD, "select 'a\\'; select '; commit'"),
        (POSTGRESQL, "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END"),
        (POSTGRESQL, "DO $$ BEGIN PERFORM 1; END $$"),
        (POSTGRESQL, "DO $a$ BEGIN PERFORM $$;$$; COMMIT; END $a$; select 1"),
        (POSTGRESQL, r"select E'it\'s; commit'"),
        (POSTGRESQL, "RESET search_path; DISCARD PLANS"),
        (MYSQL, r"select 'it\'s; commit'"),
        (MYSQL, r'select "a\";commit"'),
        (MYSQL, "select `a;commit` from t"),
        (MYSQL, "select 1 # ; commit"),
        (MYSQL, "BEGIN NOT ATOMIC SELECT 1; END"),
    ],
)
def test_bodies_and_a_databases_own_strings_are_no_statements(grammar: TransactionGrammar, text: str) -> None:
    assert not ends_transaction(grammar, text)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (POSTGRESQL, "reset all"),
        (POSTGRESQL, "select 1; DISCARD  ALL"),
        (POSTGRESQL, r"select 'a\'; commit"),  # a backslash does not escape there
        (POSTGRESQL, r"select a like'\'; commit"),
        (POSTGRESQL, "select $a$;$b$;$a$; commit"),
        (POSTGRESQL, "select $1; commit"),
        (MYSQL, r"select 'a\\'; commit"),
        (MYSQL, "select 5--1; commit"),
        (MYSQL, "select 1; truncate t"),
    ],
)
def test_what_one_database_alone_refuses(grammar: TransactionGrammar, text: str) -> None:
    assert ends_transaction(grammar, text)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["select 1", "select ';'", "-- ;\nselect 2", "/* ' */ select 3", "select 'a''b'"])))
def test_any_statements_may_stand_before_it(before: list[str]) -> None:
    for grammar in EVERYWHERE:
        assert not ends_transaction(grammar, ";".join(before))
        assert ends_transaction(grammar, ";".join([*before, " commit"]))
