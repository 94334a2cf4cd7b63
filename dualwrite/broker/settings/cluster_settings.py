"""Settings of Kafka's that a usual ``server.properties`` has, and that say little or nothing on one node.

Those of roles, voters and replicas accept the values that are true of one node. Those that tune threads are accepted
with any value, and have no effect.
"""

from collections.abc import Mapping

from dualwrite.broker.settings.setting import ANYTHING, Allowed, ConfigType, Setting, at_least, only

BOOLEAN, INT, LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
LIST, SHORT, STRING = ConfigType.LIST, ConfigType.SHORT, ConfigType.STRING

NODE_ID, BROKER_ID, VOTERS = "node.id", "broker.id", "controller.quorum.voters"
CONTROLLER_LISTENERS = "controller.listener.names"
BACKLOG = "socket.listen.backlog.size"
RECEIVE_BUFFER, SEND_BUFFER = "socket.receive.buffer.bytes", "socket.send.buffer.bytes"

_ROLES = frozenset({"broker", "controller"})
_ONE = only(1, "there is one node")
_BUFFER = Allowed("-1, for the system's size, or at least 1 byte", lambda size: size == -1 or size >= 1)


def _idle(kind: ConfigType, default: str, rule: Allowed, reason: str) -> Setting:
    return Setting(kind, default, (rule,), f"No effect: {reason}.")


def voter_id(voter: str) -> int | None:
    """The id of the node in ``voter``, an entry of controller.quorum.voters; None if it has another form."""
    node, at, address = voter.partition("@")
    return int(node) if at and address and node.isascii() and node.isdecimal() else None


def _is_one_node(voters: list[str]) -> bool:
    return len(voters) <= 1 and all(voter_id(voter) is not None for voter in voters)


_ONE_LOOP = "one event loop serves all requests"
_READS_ONCE = "a start reads these logs batch by batch"
_NO_REPLICAS = "a single node does not replicate"
_NO_ELECTIONS = "a single node leads every partition"
_NO_SHARES = "this broker has no share groups"
_NO_INNER_TRAFFIC = "a single node sends no requests to brokers"

CLUSTER_SETTINGS: Mapping[str, Setting] = {
    NODE_ID: Setting(INT, "0", (at_least(0),), "The id of the one node. It may change from one start to the next."),
    BROKER_ID: Setting(INT, "0", (at_least(0),), "The former name of node.id."),
    "process.roles": Setting(
        LIST, "broker,controller",
        (Allowed("broker, or broker,controller", lambda roles: "broker" in roles and set(roles) <= _ROLES),),
        "No effect: the one process does the work of both roles."),
    VOTERS: Setting(
        LIST, "", (Allowed("ID@HOST:PORT with the id of the node: it is the only voter", _is_one_node),),
        "No effect: a single node has no quorum."),
    "controller.quorum.bootstrap.servers": Setting(
        LIST, "", (Allowed("one HOST:PORT at most: there is one node", lambda servers: len(servers) <= 1),),
        "No effect: a single node has no quorum."),
    CONTROLLER_LISTENERS: Setting(
        LIST, "", (ANYTHING,),
        "The listeners for other controllers. They are not opened, because there are none."),
    "inter.broker.listener.name": _idle(STRING, "", ANYTHING, _NO_INNER_TRAFFIC),
    "security.inter.broker.protocol": _idle(STRING, "PLAINTEXT", ANYTHING, _NO_INNER_TRAFFIC),
    "sasl.mechanism.inter.broker.protocol": _idle(STRING, "", ANYTHING, _NO_INNER_TRAFFIC),
    "sasl.mechanism.controller.protocol": _idle(STRING, "", ANYTHING, _NO_INNER_TRAFFIC),
    "num.network.threads": _idle(INT, "1", at_least(1), _ONE_LOOP),
    "num.io.threads": _idle(INT, "1", at_least(1), _ONE_LOOP),
    "background.threads": _idle(INT, "1", at_least(1), _ONE_LOOP),
    "queued.max.requests": _idle(INT, "500", at_least(1), "queued.max.request.bytes bounds what waits"),
    "num.recovery.threads.per.data.dir": _idle(INT, "1", at_least(1), "a start opens one log after the other"),
    "log.cleaner.threads": _idle(INT, "1", at_least(0), "one thread cleans all logs"),
    "num.replica.fetchers": _idle(INT, "1", at_least(1), _NO_REPLICAS),
    "replica.lag.time.max.ms": _idle(LONG, "30000", at_least(0), _NO_REPLICAS),
    "auto.leader.rebalance.enable": _idle(BOOLEAN, "true", ANYTHING, _NO_ELECTIONS),
    "leader.imbalance.check.interval.seconds": _idle(LONG, "300", at_least(1), _NO_ELECTIONS),
    "leader.imbalance.per.broker.percentage": _idle(INT, "10", at_least(0), _NO_ELECTIONS),
    "controlled.shutdown.enable": _idle(BOOLEAN, "true", ANYTHING, _NO_ELECTIONS),
    "controlled.shutdown.max.retries": _idle(INT, "3", at_least(0), _NO_ELECTIONS),
    "controlled.shutdown.retry.backoff.ms": _idle(LONG, "5000", at_least(0), _NO_ELECTIONS),
    "num.replica.alter.log.dirs.threads": _idle(INT, "1", at_least(1), "there is one data directory"),
    "group.coordinator.threads": _idle(INT, "1", at_least(1), _ONE_LOOP),
    "offsets.load.buffer.size": _idle(INT, "5242880", at_least(1), _READS_ONCE),
    "transaction.state.log.load.buffer.size": _idle(INT, "5242880", at_least(1), _READS_ONCE),
    "unstable.api.versions.enable": Setting(
        BOOLEAN, "true", (only(True, "InitProducerId v6 (KIP-939) is always offered"),),
        "No effect: there are no other unstable versions."),
    "share.coordinator.state.topic.min.isr": _idle(SHORT, "1", _ONE, _NO_SHARES),
    "share.coordinator.state.topic.replication.factor": _idle(SHORT, "1", _ONE, _NO_SHARES),
    BACKLOG: Setting(
        INT, "1024", (at_least(1),),
        "How many connections may wait to be accepted on each listener."),
    RECEIVE_BUFFER: Setting(
        INT, "-1", (_BUFFER,), "SO_RCVBUF of each connection, in bytes; -1: the system decides, and adapts it."),
    SEND_BUFFER: Setting(
        INT, "-1", (_BUFFER,), "SO_SNDBUF of each connection, in bytes; -1: the system decides, and adapts it."),
}  # fmt: skip
"""The settings by name. The defaults are what is true here; Kafka's are others for threads and sockets."""
