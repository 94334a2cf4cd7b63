"""``dualwrite topics``: list, create, describe and delete topics."""

import argparse
from dataclasses import asdict

from dualwrite.admin.views import TopicListing
from dualwrite.cli.actions import run_action
from dualwrite.cli.cluster import add_cluster_action, cluster_config, reached_cluster
from dualwrite.cli.kafka.confirming import add_yes, require_confirmation
from dualwrite.cli.kafka.topic_output import as_json, paragraphs
from dualwrite.cli.printing import complain, print_either, table
from dualwrite.errors import DualWriteError, InputError

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = add_cluster_action(actions, "list", _list, "every topic")
    listing.add_argument("--internal", action="store_true", help="list Kafka's own topics, too")
    creating = add_cluster_action(actions, "create", _create, "create a topic")
    creating.add_argument("topic", metavar="TOPIC", help="the topic's name")
    creating.add_argument("--partitions", type=int, metavar="N", help="(default: the broker's num.partitions)")
    creating.add_argument(
        "--replication-factor", type=int, metavar="N", help="(default: the broker's default.replication.factor)"
    )
    creating.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the topic, such as retention.ms=3600000; may be repeated",
    )
    creating.add_argument("--if-not-exists", action="store_true", help="a topic that exists is no error")
    describing = add_cluster_action(
        actions, "describe", _describe, "a topic's settings, offsets and sizes, and its open transactions"
    )
    describing.add_argument("topic", metavar="TOPIC", help="the topic's name")
    deleting = add_cluster_action(actions, "delete", _delete, "delete topics with their records")
    deleting.add_argument("topics", metavar="TOPIC", nargs="+", help="the topics' names")
    deleting.add_argument("--if-exists", action="store_true", help="a topic that does not exist is no error")
    add_yes(deleting)
    for subparser in (listing, describing):
        subparser.add_argument("--json", action="store_true", help="for programs")


def _list(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.topics import list_topics  # here and below, as it imports a Kafka client

    topics = list_topics(config, internal=arguments.internal)
    lines = table(("TOPIC", "PARTITIONS", "REPLICAS"), [_line(topic) for topic in topics]) if topics else ["no topics"]
    print_either([asdict(topic) for topic in topics], lines, is_json=arguments.json)
    return 0


def _line(topic: TopicListing) -> tuple[str, ...]:
    return topic.name, str(topic.partitions), str(topic.replicas)


def _create(arguments: argparse.Namespace) -> int:
    settings: dict[str, str] = {}
    for key, value in map(_setting, arguments.config):
        if key in settings:
            raise InputError(f"--config {key} is given twice")
        settings[key] = value
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.topics import create_topic

    created = create_topic(
        config,
        arguments.topic,
        partitions=arguments.partitions,
        replicas=arguments.replication_factor,
        config=settings,
        if_not_exists=arguments.if_not_exists,
    )
    print(f"topic {arguments.topic}: {'created' if created else 'exists'}")
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--config {text!r}: use KEY=VALUE")
    return key.strip(), value.strip()


def _describe(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.topics import describe_topic

    topic = describe_topic(config, arguments.topic)
    print_either(as_json(topic), paragraphs(topic), is_json=arguments.json)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    """Delete the topics one by one; 1 if one of them could not be deleted after another was."""
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.topics import delete_topic, missing_topics

    names = list(dict.fromkeys(arguments.topics))
    missing = missing_topics(config, names)
    if missing and not arguments.if_exists:
        raise InputError(f"the cluster has no topic {missing[0]!r}, or hides it from this client")
    present = [name for name in names if name not in missing]
    if present:
        act = f"delete topic{'s' * (len(present) > 1)} {', '.join(present)} with all records"
        require_confirmation(arguments, act)
    for name in missing:
        print(f"topic {name}: there is none")
    for name in present:
        try:
            deleted = delete_topic(config, name, if_exists=arguments.if_exists)
        except DualWriteError as error:
            if name == present[0]:
                raise
            complain(str(error))
            return 1
        print(f"topic {name}: {'deleted' if deleted else 'there is none'}")
    return 0
