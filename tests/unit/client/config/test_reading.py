"""Single values of a configuration: by any name of the setting, with its default."""

from typing import Any

import pytest

from dualwrite.client.config.native_keys import ALIASES, KEYS
from dualwrite.client.config.reading import (
    BOOTSTRAP_KEY,
    TIMEOUT_KEY,
    flag_in,
    is_two_phase,
    milliseconds_in,
    name_in,
    servers_in,
    text_in,
    value_in,
)
from dualwrite.errors import ConfigurationError


@pytest.mark.parametrize(("alias", "key"), sorted(ALIASES.items()))
def test_a_setting_is_found_by_each_of_its_names(alias: str, key: str) -> None:
    assert (name_in({alias: "x"}, key), value_in({alias: "x"}, key)) == (alias, "x")
    assert value_in({alias: "x", key: "y"}, key) == "y", "its own name comes first"


def test_an_absent_setting_has_its_default() -> None:
    assert name_in({"client.id": None}, "client.id") is None
    assert value_in({"client.id": None}, "client.id") == KEYS["client.id"].default == "dualwrite"
    assert value_in({BOOTSTRAP_KEY: None, "metadata.broker.list": "h:1"}, BOOTSTRAP_KEY) == "h:1"
    assert milliseconds_in({TIMEOUT_KEY: None}, TIMEOUT_KEY) is None
    assert is_two_phase({"transaction.two.phase.commit.enable": None})


def test_an_empty_text_counts_as_not_given_and_an_empty_flag_or_number_is_refused() -> None:
    assert text_in({"ssl.ca.location": ""}, "ssl.ca.location") is None
    with pytest.raises(ConfigurationError, match="''"):
        flag_in({"socket.nagle.disable": ""}, "socket.nagle.disable")
    with pytest.raises(ConfigurationError, match="''"):
        milliseconds_in({TIMEOUT_KEY: ""}, TIMEOUT_KEY)


def test_zero_and_false_are_values_and_not_absent() -> None:
    assert milliseconds_in({TIMEOUT_KEY: 0}, TIMEOUT_KEY) == 0
    assert not flag_in({"socket.nagle.disable": False}, "socket.nagle.disable")


@pytest.mark.parametrize(
    ("read", "config", "message"),
    [
        (milliseconds_in, {TIMEOUT_KEY: "soon"}, r"transaction\.timeout\.ms 'soon': give milliseconds"),
        (
            milliseconds_in,
            {TIMEOUT_KEY: float("inf")},
            r"transaction\.timeout\.ms inf: give milliseconds, a whole number",
        ),
        (milliseconds_in, {TIMEOUT_KEY: 1.5}, r"transaction\.timeout\.ms 1\.5: give milliseconds, a whole number"),
        (milliseconds_in, {TIMEOUT_KEY: 2**31}, r"transaction\.timeout\.ms 2147483648: .* up to 2147483647$"),
        (flag_in, {"socket.nagle.disable": "maybe"}, r"socket\.nagle\.disable 'maybe': allowed: true, false"),
        (text_in, {"ssl.ca.location": 7}, r"ssl\.ca\.location of type int: give text"),
    ],
)
def test_another_value_is_refused_by_the_settings_name(read: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(config, next(iter(config)))


def test_brokers_under_two_names_are_not_of_two_clusters() -> None:
    assert servers_in({BOOTSTRAP_KEY: "a:1", "metadata.broker.list": "a:1"}) == "a:1"
    with pytest.raises(ConfigurationError, match=r"^bootstrap\.servers and metadata\.broker\.list are one setting"):
        servers_in({BOOTSTRAP_KEY: "a:1", "metadata.broker.list": "b:1"})


@pytest.mark.parametrize("servers", [",", " , ,"])
def test_a_text_that_names_no_broker_is_refused(servers: str) -> None:
    """Every request would wait in vain for an answer of a broker without a name."""
    with pytest.raises(ConfigurationError, match=r"^bootstrap\.servers ' ?, ?,?': name at least one broker"):
        servers_in({BOOTSTRAP_KEY: servers})
