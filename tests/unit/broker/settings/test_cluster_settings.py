"""Kafka's settings of clusters, threads and sockets: what is accepted on one node, and what is said of the others."""

import re
from pathlib import Path

import pytest

from dualwrite.broker.config import BrokerOptions, setting_problems, with_data_dir
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.cluster_settings import CLUSTER_SETTINGS
from dualwrite.broker.settings.unknown_settings import LACKS, unknown_setting
from dualwrite.errors import ConfigurationError

ACCEPTED = [
    ("node.id", "0"),
    ("node.id", "2147483647"),
    ("broker.id", "7"),
    ("process.roles", "broker"),
    ("process.roles", "broker,controller"),
    ("controller.quorum.voters", ""),
    ("controller.quorum.voters", "0@localhost:9093"),
    ("controller.quorum.voters", "1@localhost:9093"),
    ("controller.quorum.bootstrap.servers", "localhost:9093"),
    ("num.io.threads", "8"),
    ("inter.broker.listener.name", "PLAINTEXT"),
    ("auto.leader.rebalance.enable", "false"),
    ("socket.send.buffer.bytes", "102400"),
    ("socket.receive.buffer.bytes", "-1"),
    ("socket.listen.backlog.size", "50"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("group.coordinator.threads", "4"),
    ("unstable.api.versions.enable", "true"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_what_is_true_on_one_node_is_accepted(name: str, value: str) -> None:
    assert list(setting_problems({name: value})) == []


REFUSED = [
    ("node.id", "-1", "Value must be at least 0"),
    ("broker.id", "one", "Not a number of type INT"),
    ("process.roles", "controller", "broker, or broker,controller"),
    ("process.roles", "", "broker, or broker,controller"),
    ("process.roles", "broker,witness", "broker, or broker,controller"),
    ("controller.quorum.voters", "localhost:9093", "ID@HOST:PORT with the id of the node: it is the only voter"),
    ("controller.quorum.voters", "one@localhost:9093", "ID@HOST:PORT with the id of the node: it is the only voter"),
    ("controller.quorum.voters", "0@a:1,1@b:1", "ID@HOST:PORT with the id of the node: it is the only voter"),
    ("controller.quorum.bootstrap.servers", "a:1,b:1", "one HOST:PORT at most: there is one node"),
    ("num.io.threads", "0", "Value must be at least 1"),
    ("num.network.threads", "many", "Not a number of type INT"),
    ("socket.send.buffer.bytes", "0", "-1, for the system's size, or at least 1 byte"),
    ("share.coordinator.state.topic.replication.factor", "3", "there is one node"),
    ("unstable.api.versions.enable", "false", "InitProducerId v6 (KIP-939) is always offered"),
]


@pytest.mark.parametrize(("name", "value", "reason"), REFUSED)
def test_what_a_single_node_cannot_be_is_refused_by_name(name: str, value: str, reason: str) -> None:
    assert list(setting_problems({name: value})) == [f"broker setting {name}={value}: {reason}"]


@pytest.mark.parametrize("name", CLUSTER_SETTINGS)
def test_a_setting_without_an_effect_says_why(name: str) -> None:
    setting = CLUSTER_SETTINGS[name]
    assert SETTINGS[name] is setting
    if setting.documentation.startswith("No effect"):
        assert re.fullmatch(r"No effect: .{10,}\.", setting.documentation)


def node_id(**config: str) -> int:
    """The node's id by a configuration, whose names have underscores for dots."""
    named = {key.replace("_", "."): text for key, text in config.items()}
    return BrokerOptions(Path("data"), config=named).number("node.id")


def test_the_nodes_id_has_two_names() -> None:
    assert node_id() == 0
    assert node_id(node_id="3") == node_id(broker_id="3") == node_id(node_id="3", broker_id="03") == 3
    assert BrokerOptions(Path("data"), config={"node.id": "3"}).config["broker.id"] == "3"
    with pytest.raises(ConfigurationError, match=r"node\.id=3 and broker\.id=4: they are two names of one setting"):
        node_id(node_id="3", broker_id="4")


def test_the_only_voter_is_the_node_itself() -> None:
    assert node_id(node_id="3", controller_quorum_voters="3@localhost:9093") == 3
    with pytest.raises(ConfigurationError, match=r"=3@h:1: the only voter is the node itself, whose node\.id is 0$"):
        node_id(controller_quorum_voters="3@h:1")


# --- names that are no settings here


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zookeeper.connect", "this broker needs no ZooKeeper; remove it"),
        ("remote.log.storage.system.enable", "this broker has no tiered storage; remove it"),
        ("quota.window.num", "this broker enforces no quotas; remove it"),
        ("controller.quota.window.num", "enforces no quotas"),
        ("controller.quorum.election.timeout.ms", "without a quorum of controllers"),
        ("replica.fetch.max.bytes", "does not replicate"),
        ("sasl.kerberos.service.name", "no GSSAPI"),
        ("metric.reporters", "--metrics"),
        ("log.dirs", "use the option --data-dir"),
        ("create.topic.policy.class.name", "runs no classes of Java; remove it"),
        ("ssl.keystore.password", "whose key ssl.key.password decrypts; remove it"),
        ("max.connections.per.ip.overrides", "one limit for all addresses (max.connections.per.ip); remove it"),
        ("inter.broker.protocol.version", "no other brokers, of an earlier release; remove it"),
    ],
)
def test_a_setting_of_what_this_broker_lacks_says_so(name: str, words: str) -> None:
    message = unknown_setting(name)
    assert message.startswith(f"unknown broker setting '{name}': ")
    assert words in message


@pytest.mark.parametrize("beginning", LACKS)
def test_what_is_lacking_is_no_setting_here(beginning: str) -> None:
    assert beginning not in SETTINGS


def test_the_longest_beginning_says_it() -> None:
    assert "enforces no quotas" in unknown_setting("controller.quota.window.size.seconds")


def test_every_problem_is_reported_the_unknown_names_first() -> None:
    config = {"num.partitions": "0", "nope": "1", "zookeeper.connect": "x", "node.id": "-4"}
    problems = list(setting_problems(config))
    assert [re.findall(r"'?([a-z.]+)'?[=;:]", problem)[0] for problem in problems] == [
        "nope", "zookeeper.connect", "num.partitions", "node.id",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"^unknown broker setting 'nope'"):
        BrokerOptions(Path("data"), config=config)


# --- the data directory


@pytest.mark.parametrize("key", ["log.dir", "log.dirs"])
def test_kafkas_setting_names_the_data_directory(key: str) -> None:
    assert with_data_dir({key: "/d", "num.partitions": "2"}, None) == ({"num.partitions": "2"}, "/d")
    assert with_data_dir({key: "/d"}, "/d") == ({}, "/d"), "the same directory twice is no contradiction"


def test_log_dirs_takes_precedence_as_in_kafka() -> None:
    assert with_data_dir({"log.dir": "/a", "log.dirs": "/b"}, None) == ({}, "/b")


def test_without_kafkas_setting_the_option_is_the_directory() -> None:
    assert with_data_dir({"num.partitions": "2"}, "/d") == ({"num.partitions": "2"}, "/d")
    assert with_data_dir({}, None) == ({}, None)


@pytest.mark.parametrize(
    ("config", "data_dir", "words"),
    [
        ({"log.dirs": "/a"}, "/b", "--data-dir /b and log.dirs=/a are both given"),
        ({"log.dirs": "/a,/b"}, None, "this broker has one directory; name one"),
    ],
)
def test_several_directories_are_refused(config: dict[str, str], data_dir: str | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        with_data_dir(config, data_dir)


# --- the listeners of controllers


def options(**config: str) -> BrokerOptions:
    return BrokerOptions(
        Path("data"), config={name.replace("_", "."): value for name, value in config.items()}, allow_anonymous=True
    )


def test_a_listener_for_controllers_is_not_opened() -> None:
    made = options(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="controller",
    )
    assert [(listener.name, listener.port, listener.advertised_host) for listener in made.listeners] == [
        ("PLAINTEXT", 9092, "localhost")
    ]
    assert made.absent_listeners == ("CONTROLLER://:9093",)


def test_a_broker_with_listeners_for_controllers_only_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="CONTROLLER is for controllers; add a listener for clients"):
        options(listeners="CONTROLLER://localhost:9093", controller_listener_names="CONTROLLER")


def test_a_listener_that_no_setting_gives_to_controllers_is_for_clients() -> None:
    made = options(listeners="CONTROLLER://localhost:9093", listener_security_protocol_map="CONTROLLER:PLAINTEXT")
    assert [listener.name for listener in made.listeners] == ["CONTROLLER"]
    assert made.absent_listeners == ()
