"""Writes pages of docs/reference from the code's own tables: states, apis, acls, metrics, settings and producer; and
draws the diagrams in docs/pictures and the table of docs/recipe.md (``drawing/``).

``python docs/draw.py`` does it. A test compares the pages and diagrams with what this would write.
"""

from collections.abc import Iterator
from pathlib import Path

from drawing.files import draw_files
from drawing.states_page import GENERATED, states_page
from dualwrite.broker.api import api_versions
from dualwrite.broker.api.routes import MODULES, ROUTES
from dualwrite.broker.metrics.catalogue import METRICS
from dualwrite.broker.metrics.metric import PREFIX
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_SETTINGS
from dualwrite.broker.settings.group_settings import GROUP_SETTINGS, setting_of_all_groups
from dualwrite.broker.settings.listener_settings import LISTENER_SETTINGS
from dualwrite.broker.settings.setting import Setting
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS, TopicSetting
from dualwrite.client.config.native_keys import ALIASES, KEYS, Key, Use
from dualwrite.wire.apis import ApiKey

REFERENCE = Path(__file__).parent / "reference"

# Every API of a broker of Apache Kafka 4.4.0: key, name, first and last version (its ApiKeys, without unstable ones).
KAFKA_4_4 = {
    0: ("Produce", 3, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 11),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 5),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 2),
    28: ("TxnOffsetCommit", 0, 6),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 5),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    38: ("CreateDelegationToken", 1, 3),
    39: ("RenewDelegationToken", 1, 2),
    40: ("ExpireDelegationToken", 1, 2),
    41: ("DescribeDelegationToken", 1, 3),
    42: ("DeleteGroups", 0, 3),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    64: ("UnregisterBroker", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    71: ("GetTelemetrySubscriptions", 0, 0),
    72: ("PushTelemetry", 0, 0),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1),
    77: ("ShareGroupDescribe", 1, 1),
    78: ("ShareFetch", 1, 2),
    79: ("ShareAcknowledge", 1, 2),
    80: ("AddRaftVoter", 0, 1),
    81: ("RemoveRaftVoter", 0, 0),
    83: ("InitializeShareGroupState", 0, 0),
    84: ("ReadShareGroupState", 0, 0),
    85: ("WriteShareGroupState", 0, 1),
    86: ("DeleteShareGroupState", 0, 0),
    87: ("ReadShareGroupStateSummary", 0, 1),
    88: ("StreamsGroupHeartbeat", 0, 1),
    89: ("StreamsGroupDescribe", 0, 1),
    90: ("DescribeShareGroupOffsets", 0, 1),
    91: ("AlterShareGroupOffsets", 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0),
    93: ("StreamsGroupTopologyDescriptionUpdate", 0, 0),
    94: ("UnregisterController", 0, 0),
}

# What is missing from an API although every version of it is answered.
PARTIAL = {
    ApiKey.FETCH: "fetch sessions are declined; clients then send full fetches",
    ApiKey.DESCRIBE_CONFIGS: "topics, the broker, groups; no loggers, no client metrics",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "topics and the broker; no groups, loggers, client metrics",
    ApiKey.ALTER_CONFIGS: "topics and the broker; no groups, loggers, client metrics",
    ApiKey.ALTER_CLIENT_QUOTAS: "quotas are refused, because the broker enforces none",
    ApiKey.UPDATE_FEATURES: "transaction.version stays at 2",
}

_ONE_NODE = "it only makes sense in a cluster"
_SHARES, _STREAMS = "no share groups", "no streams groups"
_TELEMETRY, _TOKENS = "no client telemetry", "no delegation tokens"

# Why an API is missing.
NOT_HERE = {
    **dict.fromkeys((38, 39, 40, 41), _TOKENS),
    **dict.fromkeys((80, 81, 94), _ONE_NODE),
    **dict.fromkeys((71, 72), _TELEMETRY),
    **dict.fromkeys((76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92), _SHARES),
    **dict.fromkeys((88, 89, 93), _STREAMS),
}

# For each KIP: its subject, and which part of it works in the bundled broker.
KIPS = [
    ("43", "SaslHandshake: the client chooses a mechanism", "all but GSSAPI"),
    ("74", "Fetch returns at least one batch, however small max_bytes is", "all"),
    ("84", "SCRAM", "SCRAM-SHA-256 and SCRAM-SHA-512"),
    ("98", "idempotence and transactions", "all"),
    ("107", "DeleteRecords", "all"),
    ("113", "AlterReplicaLogDirs", "all; there is one data directory"),
    ("140", "APIs for ACLs", "all"),
    ("152", "SaslAuthenticate: the answer to a failed authentication has a reason", "all"),
    ("183", "ElectLeaders", "all; no election is ever needed"),
    ("195", "CreatePartitions", "all"),
    ("211", "offsets expire when a group is empty, or does not read their topic any more", "all"),
    ("226", "broker settings can be changed at run time", "the defaults of topic settings and some others"),
    ("227", "fetch sessions", "declined: clients send full fetches"),
    ("255", "OAUTHBEARER", "all; unsecured tokens only if a setting allows them"),
    ("290", "ACLs with prefixed patterns", "all"),
    ("320", "OffsetForLeaderEpoch", "all; the only leader epoch is 0"),
    ("339", "IncrementalAlterConfigs", "topics, groups and the broker"),
    ("345", "static members", "all"),
    ("360", "InitProducerId with the expected identity", "all"),
    ("368", "re-authentication", "all; one setting for all mechanisms of a listener"),
    ("392", "fetching from the closest replica", "no: there is only one replica"),
    ("394", "a member id before JoinGroup", "all"),
    ("405", "tiered storage", "no; ListOffsets accepts its special timestamps"),
    ("429", "cooperative rebalancing", "all; only the clients take part in it"),
    ("430", "answers with the operations that the client may perform", "all"),
    ("447", "one producer commits offsets of many partitions, fenced by the group's generation", "all"),
    ("455", "reassignment of partitions", "all; the replicas can only be the one node"),
    ("464", "default partition count in CreateTopics", "all"),
    ("496", "OffsetDelete", "all"),
    ("511", "ApiVersions names the client, and is answered in v0 if its version is unknown", "all"),
    ("516", "topic ids", "all"),
    ("518", "ListGroups by state", "all"),
    ("525", "CreateTopics answers the topic's settings", "all"),
    ("533", "a default timeout for the Admin client", "concerns clients only"),
    ("534", "tombstones and markers stay readable for delete.retention.ms before they are compacted away", "all"),
    ("546", "client quotas", "none: they are described as none, and refused"),
    ("554", "users' credentials for SCRAM", "all"),
    ("559", "protocol type and name in SyncGroup", "all"),
    ("569", "types and documentation of settings", "all"),
    ("584", "UpdateFeatures", "transaction.version stays at 2"),
    ("588", "the error PRODUCER_FENCED; a client goes on after its transaction has timed out", "all"),
    ("595", "DescribeQuorum", "all; the one node is the only voter"),
    ("599", "quotas for topic operations", "no quotas"),
    (
        "664",
        "DescribeTransactions, ListTransactions, DescribeProducers",
        "all, including WriteTxnMarkers from an operator",
    ),
    ("679", "producers are idempotent by default", "concerns clients only"),
    ("699", "FindCoordinator for several keys", "all"),
    ("700", "DescribeCluster", "all"),
    ("709", "OffsetFetch of several groups", "all"),
    ("714", "client telemetry", "no"),
    ("734", "offset of the highest timestamp", "all"),
    ("768", "OAUTHBEARER with an issuer's public keys", "the broker's side; tokens must be JWTs"),
    ("814", "a static leader that comes back skips the assignment", "all"),
    ("827", "sizes of volumes in DescribeLogDirs", "all"),
    (
        "848",
        "the consumer protocol",
        "all, with upgrades and downgrades of groups with members; topics of a pattern are found at once, and on one "
        "node there are no racks",
    ),
    ("890", "part 1: no hanging transactions; part 2: an epoch for each transaction", "all"),
    ("919", "endpoints of controllers", "there are none; DescribeCluster says so"),
    ("932", "share groups", "no"),
    ("939", "two-phase commit", "all, including the ACL operation TWO_PHASE_COMMIT"),
    ("966", "DescribeTopicPartitions", "all; there are no further replicas, so the list of eligible leaders is empty"),
    ("994", "ListTransactions by duration", "all"),
    ("1082", "the client chooses its member id", "all"),
    ("1099", "ConsumerGroupDescribe has the type of a member", "all"),
    ("1030", "new lower bounds of settings", "all"),
    ("1142", "ListConfigResources", "all"),
    ("1152", "ListTransactions by pattern", "all"),
    ("1228", "WriteTxnMarkers has the transaction version", "all"),
    ("1242", "ApiVersions v5: the client names the cluster that it expects", "all"),
    ("1251", "a member's late commit for a partition that it still holds", "all"),
    ("1319", "topic ids in TxnOffsetCommit", "all"),
]


def apis_page() -> str:
    """What the bundled broker speaks."""
    return "\n".join(["# What the bundled broker speaks", "", GENERATED, "", *_overview(), "", *_apis(), *_kips(), ""])


def metrics_page() -> str:
    """The metrics of ``dualwrite broker --metrics``."""
    rows = (
        f"| `{PREFIX}{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |"
        for metric in METRICS
    )
    return "\n".join(["# Metrics of the bundled broker", "", GENERATED, "", _METRICS, "", *_TABLE, *rows, ""])


_METRICS = """`dualwrite broker --metrics HOST:PORT` serves Prometheus at `http://HOST:PORT/metrics`, without a
password: open the port only in a network that you trust. Each scrape reads the current values. The same address
answers [the probes](../broker.md#watching-the-broker) `/healthz` and `/readyz`. Before the broker has recovered,
`/metrics` answers 503.

Labels have the names of topics, groups and listeners, and no name of a user, no client id and no address. The number of
series grows with the partitions, and with the APIs in use (five histograms of seven buckets each).
`dualwrite_broker_group_lag` has at most 1000 series.

`dualwrite_broker_in_doubt_transactions` counts each open transaction of two-phase commit, also those of units of work
that run now. If `dualwrite_broker_blocking_transaction_open_time_max_ms` grows meanwhile, an application has left a
transaction open. Its records, and all later records in their partitions, stay invisible to read_committed readers.
Start the application again: it asks its database and ends the transaction. If the application is gone for good,
`kafka-transactions --bootstrap-server HOST:PORT forceTerminateTransaction --transactionalId ID` **aborts** the
transaction, even if the database has committed."""
_TABLE = ("| metric | kind | labels | meaning |", "|---|---|---|---|")


def settings_page() -> str:
    """Every setting of the broker, of a topic and of a group."""
    return "\n".join(
        [
            *("# Settings of the bundled broker", "", GENERATED, "", _SETTINGS, ""),
            *("## The broker's", "", "| setting | default | allowed | changed | meaning |", "|---|---|---|---|---|"),
            *(_broker_row(name, SETTINGS[name]) for name in sorted(SETTINGS)),
            *("", "## A topic's", "", _TOPICS, ""),
            *("| setting | default | allowed | the broker's default for it | meaning |", "|---|---|---|---|---|"),
            *(_topic_row(name, TOPIC_SETTINGS[name]) for name in sorted(TOPIC_SETTINGS)),
            *("", "## A consumer group's", "", _GROUPS, ""),
            *("| setting | allowed | the broker's default for it | meaning |", "|---|---|---|---|"),
            *(_group_row(name, GROUP_SETTINGS[name]) for name in sorted(GROUP_SETTINGS)),
            "",
        ]
    )


_SETTINGS = """The names and the defaults are Kafka's, with exceptions: `transaction.two.phase.commit.enable`
([decision 0004](../decisions/0004-two-phase-commit-on-by-default.md)), `listeners`
([0023](../decisions/0023-listeners-and-tls.md)), `queued.max.request.bytes`
([0025](../decisions/0025-memory-and-faults.md)), settings of threads and sockets
([0035](../decisions/0035-administration-of-one-node.md)), `group.consumer.assignment.interval.ms`
([0034](../decisions/0034-consumer-groups.md)), and the settings of the internal topics, which have one partition, one
replica and segments of 4 MiB. The end of a name is its unit: `.ms` means milliseconds.

A setting of the broker is given at the start: in a file (`dualwrite broker --config-file PATH`, in the form of Kafka's
`server.properties`), with `--config key=value`, or with `EmbeddedBroker(…, config={…})`. A setting of type PASSWORD
belongs in a file: a command line is visible to every user of the machine. Where "changed" says "each listener",
`listener.name.NAME.SETTING` sets it for the listener NAME (in lower case) alone.

The broker keeps settings that a client changes while it runs (IncrementalAlterConfigs, `kafka-configs.sh`). At the next
start they take precedence over `--config`."""
_TOPICS = """Set them when you create the topic, and change them at any time. The broker refuses a value that it
cannot honour, and says why."""
_GROUPS = """For groups of `group.protocol=consumer` (KIP-848). Set them at any time, also before the group exists:
`kafka-configs.sh --alter --entity-type groups --entity-name GROUP --add-config …`. A value lies within the broker's
limits, `group.consumer.min.…` and `group.consumer.max.…`, which do not limit the broker's own values. The session
timeout must be longer than the heartbeat interval. A change takes effect with the next heartbeat of each member."""


def _broker_row(name: str, setting: Setting) -> str:
    allowed = _in_cell(setting.allowed)
    changed = "while it runs" if name in DYNAMIC_SETTINGS else "at the start"
    if name in LISTENER_SETTINGS:
        changed += ", each listener"
    return f"| `{name}` | {_code(setting.default or '')} | {allowed} | {changed} | {setting.documentation} |"


def _topic_row(name: str, setting: TopicSetting) -> str:
    allowed, brokers = _in_cell(setting.allowed), ", ".join(f"`{source.name}`" for source in setting.broker)
    return f"| `{name}` | {_code(setting.default)} | {allowed} | {brokers} | {setting.documentation} |"


def _group_row(name: str, setting: Setting) -> str:
    return f"| `{name}` | {_in_cell(setting.allowed)} | `{setting_of_all_groups(name)}` | {setting.documentation} |"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def producer_page() -> str:
    """Every setting of the native producer."""
    return "\n".join(
        [
            *("# Settings of the native producer", "", GENERATED, "", _PRODUCER, ""),
            *("## Settings with an effect", "", "| setting | default | allowed | meaning |", "|---|---|---|---|"),
            *(_taken_row(name, KEYS[name]) for name in sorted(KEYS) if KEYS[name].use is Use.TAKEN),
            *("", "## Settings without an effect", "", "| setting | allowed | why |", "|---|---|---|"),
            *(_other_row(name, KEYS[name]) for name in sorted(KEYS) if KEYS[name].use is Use.NO_EFFECT),
            *("", "## Settings that are refused", "", "| setting | why |", "|---|---|"),
            *(f"| `{name}` | {KEYS[name].meaning} |" for name in sorted(KEYS) if KEYS[name].use is Use.REFUSED),
            "",
        ]
    )


_PRODUCER = """The names are librdkafka's; so are the ranges and defaults, unless the table says otherwise. The end of a
name is its unit: `.ms` means milliseconds. A wrong name or value raises an error that lists what is allowed. The
configuration may also contain librdkafka's settings that have no effect on this producer, so that one configuration
serves both producers."""


def _taken_row(name: str, key: Key) -> str:
    others = [f"`{alias}`" for alias, known in ALIASES.items() if known == name]
    names = ", ".join([f"`{name}`", *others])
    default = "" if key.default is None else str(key.default).lower() if isinstance(key.default, bool) else key.default
    return f"| {names} | {_code(str(default))} | {key.rule.says} | {key.meaning} |"


def _other_row(name: str, key: Key) -> str:
    rule, _, why = key.rule.says.partition(" only: ")
    return f"| `{name}` | {rule} | {key.meaning or why} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def acls_page() -> str:
    """docs/reference/acls.md."""
    return "\n".join(_rights()) + "\n"


_ABOUT_ACLS = """# Rights

The rights that each API needs, and the error if the client lacks the right. A row without an error means that another
right suffices, or that the answer leaves something out. The broker checks the right before it looks for the topic,
group or transactional id, so a refused client does not learn whether it exists. Operations and resources are Kafka's;
the broker checks them if `authorizer.class.name` is set ([broker.md](../broker.md#rights)).

| API | operation | resource | error | note |
|---|---|---|---|---|"""
_AUTHENTICATING = "ApiVersions, SaslHandshake and SaslAuthenticate need no right."


def _rights() -> Iterator[str]:
    yield _ABOUT_ACLS
    for module in sorted(MODULES, key=lambda module: int(module.KEY)):
        name = KAFKA_4_4[module.KEY][0]
        for need in module.NEEDS:
            resource = need.resource_type.name.replace("_", " ").title().replace(" ", "")
            error = need.error.name if need.is_refused else ""
            yield f"| {name} | {need.operation.name} | {resource} | {error} | {need.note} |"
    yield ""
    yield _AUTHENTICATING


def _overview() -> Iterator[str]:
    yield "| API | key | versions | Apache Kafka 4.4 | what works |"
    yield "|---|---|---|---|---|"
    for key, (name, first, last) in KAFKA_4_4.items():
        theirs = f"{first} to {last}"
        if key not in ROUTES:
            yield f"| {name} | {key} | | {theirs} | no: {NOT_HERE.get(key, 'not yet')} |"
            continue
        versions = ROUTES[ApiKey(key)].versions
        yield f"| {name} | {key} | {versions[0]} to {versions[-1]} | {theirs} | {_what_works(ApiKey(key), last)} |"
    yield ""
    yield "Produce is advertised from v0 on, as in Apache Kafka. InitProducerId v6 (KIP-939) is unstable in Apache"
    yield "Kafka 4.4, which offers it only with `unstable.api.versions.enable`. The finalized feature is"
    yield "`transaction.version=2`. The only node has the id of `node.id`."


def _what_works(key: ApiKey, last: int) -> str:
    latest = ROUTES[key].versions[-1]
    missing = [f"no v{latest + 1}" if last == latest + 1 else f"nothing above v{latest}"] if last > latest else []
    missing += [PARTIAL[key]] if key in PARTIAL else []
    return "partial: " + "; ".join(missing) if missing else "all"


def _apis() -> Iterator[str]:
    yield "## Each API"
    yield ""
    yield "For the rights that a client needs see [acls.md](acls.md)."
    yield ""
    for module in sorted((*MODULES, api_versions), key=lambda module: int(module.KEY)):
        title, _, specification = (module.__doc__ or "").strip().partition("\n")
        yield f"### {title.rstrip('.')}"
        yield ""
        yield from specification.strip().replace("``", "`").splitlines()
        yield ""


def _kips() -> Iterator[str]:
    yield "## KIPs"
    yield ""
    yield "| KIP | what it is | what works |"
    yield "|---|---|---|"
    for number, what, works in KIPS:
        yield f"| {number} | {what} | {works} |"


def main() -> None:
    """Write the pages, and draw the diagrams."""
    (REFERENCE / "states.md").write_text(states_page())
    (REFERENCE / "apis.md").write_text(apis_page())
    (REFERENCE / "acls.md").write_text(acls_page())
    (REFERENCE / "metrics.md").write_text(metrics_page())
    (REFERENCE / "settings.md").write_text(settings_page())
    (REFERENCE / "producer.md").write_text(producer_page())
    draw_files(REFERENCE.parents[1])


if __name__ == "__main__":
    main()
