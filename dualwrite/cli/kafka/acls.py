"""``dualwrite acls``: list, add and remove access control lists."""

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

from dualwrite.broker.access.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from dualwrite.cli.actions import Action, run_action
from dualwrite.cli.cluster import add_cluster_action, cluster_config, reached_cluster
from dualwrite.cli.kafka.confirming import add_yes, require_confirmation
from dualwrite.cli.printing import counted, print_either, printable, table
from dualwrite.errors import InputError

run = run_action

_RESOURCES = {
    "topics": ("--topic", ResourceType.TOPIC, "a topic"),
    "groups": ("--group", ResourceType.GROUP, "a consumer group"),
    "transactional_ids": ("--transactional-id", ResourceType.TRANSACTIONAL_ID, "a transactional id"),
    "users": ("--user", ResourceType.USER, "a user, for its delegation tokens"),
}
_OF_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_OPERATIONS: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        *_OF_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, *_OF_CONFIGS),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        *_OF_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""What can be granted on each resource (Kafka: AclEntry.supportedOperations). A broker stores any other operation, and
never looks at it."""
_HEADS = ("PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "PATTERN", "RESOURCE", "NAME")
_PATTERNS = ("literal", "prefixed", "match", "any")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _action(actions, "list", _list, "every ACL, or those that the options describe")
    adding = _action(actions, "add", _add, "add ACLs: one for each principal, resource and operation")
    removing = _action(actions, "remove", _remove, "remove the ACLs that the options describe")
    adding.add_argument(
        "--principal",
        dest="principals",
        action="append",
        required=True,
        metavar="TYPE:NAME",
        help="who, such as User:orders; may be repeated",
    )
    adding.add_argument("--prefixed", action="store_true", help="names of resources are prefixes of names")
    adding.add_argument("--deny", action="store_true", help="forbid, instead of allow")
    adding.add_argument(
        "--host",
        default=WILDCARD,
        metavar="ADDRESS",
        help="the client's address, or a range: 10.0.0.0/8 (every address)",
    )
    adding.add_argument(
        "--operation",
        dest="operations",
        type=_operation,
        action="append",
        required=True,
        metavar="OPERATION",
        help="what, such as READ; may be repeated",
    )
    for subparser in (listing, removing):
        subparser.add_argument("--principal", metavar="TYPE:NAME", help="only with this principal, such as User:orders")
        subparser.add_argument("--host", metavar="ADDRESS", help="only with this host")
        subparser.add_argument(
            "--operation", type=_operation, metavar="OPERATION", help="only with this operation, such as READ"
        )
        subparser.add_argument(
            "--pattern",
            choices=_PATTERNS,
            default="any",
            help="only with this pattern; match: every ACL that applies to a resource of this name (any)",
        )
        permission = subparser.add_mutually_exclusive_group()
        permission.add_argument("--allow", action="store_true", help="only those that allow")
        permission.add_argument("--deny", action="store_true", help="only those that forbid")
    add_yes(removing)
    for subparser in (listing, removing):
        subparser.add_argument("--json", action="store_true", help="for programs")


def _action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    subparser = add_cluster_action(actions, name, action, purpose)
    for dest, (option, _, noun) in _RESOURCES.items():
        subparser.add_argument(
            option, dest=dest, action="append", default=[], metavar="NAME", help=f"{noun}; may be repeated"
        )
    subparser.add_argument("--cluster", action="store_true", help="the cluster itself")
    return subparser


def _operation(text: str) -> AclOperation:
    name = text.upper().replace("-", "_")
    names = [operation.name for operation in AclOperation if operation > AclOperation.ANY]
    if name not in names:
        raise argparse.ArgumentTypeError(f"{text!r}: use one of {', '.join(names)}")
    return AclOperation[name]


def _resources(arguments: argparse.Namespace) -> list[tuple[ResourceType, str]]:
    resources = [(kind, name) for dest, (_, kind, _) in _RESOURCES.items() for name in getattr(arguments, dest)]
    return resources + [(ResourceType.CLUSTER, CLUSTER_NAME)] * arguments.cluster


def _filters(arguments: argparse.Namespace) -> list[AclFilter]:
    """A filter for each resource; one for every resource if none was named."""
    resources: list[tuple[ResourceType, str | None]] = [*_resources(arguments)] or [(ResourceType.ANY, None)]
    permission = Permission.ALLOW if arguments.allow else Permission.DENY if arguments.deny else Permission.ANY
    return [
        AclFilter(
            kind,
            name,
            PatternType[arguments.pattern.upper()],
            arguments.principal,
            arguments.host,
            arguments.operation or AclOperation.ANY,
            permission,
        )
        for kind, name in resources
    ]


def _list(arguments: argparse.Namespace) -> int:
    filters = _filters(arguments)
    acls = _found(reached_cluster(cluster_config(arguments)), filters)
    print_either([_as_json(acl) for acl in acls], _lines(acls) if acls else ["no ACLs"], is_json=arguments.json)
    return 0


def _found(config: dict[str, Any], filters: Sequence[AclFilter]) -> list[Acl]:
    from dualwrite.admin.acls import list_acls  # here and below, as it imports a Kafka client

    return list(dict.fromkeys(acl for each in filters for acl in list_acls(config, each)))


def _lines(acls: Sequence[Acl]) -> list[str]:
    return table(
        _HEADS,
        [
            (
                printable(acl.principal),
                acl.host,
                acl.permission.name,
                acl.operation.name,
                acl.pattern_type.name,
                acl.resource_type.name,
                printable(acl.resource_name),
            )
            for acl in acls
        ],
    )


def _as_json(acl: Acl) -> dict[str, object]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "pattern": acl.pattern_type.name,
        "resource": acl.resource_type.name,
        "name": acl.resource_name,
    }


def _senseless(acl: Acl) -> str | None:
    """Why ``acl`` would have no effect; None if it has one."""
    possible = _OPERATIONS[acl.resource_type]
    if acl.operation in (AclOperation.ALL, *possible):
        return None
    kind = acl.resource_type.name.lower().replace("_", " ")
    names = ", ".join(operation.name for operation in possible)
    return f"--operation {acl.operation.name} has no meaning for a {kind}: use ALL, {names}"


def _add(arguments: argparse.Namespace) -> int:
    resources = _resources(arguments)
    if not resources:
        options = ", ".join(option for option, *_ in _RESOURCES.values())
        raise InputError(f"name a resource: {options} or --cluster")
    pattern = PatternType.PREFIXED if arguments.prefixed else PatternType.LITERAL
    permission = Permission.DENY if arguments.deny else Permission.ALLOW
    acls = [
        Acl(
            kind,
            name,
            PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern,
            principal,
            arguments.host,
            operation,
            permission,
        )
        for (kind, name), principal, operation in product(resources, arguments.principals, arguments.operations)
    ]
    for acl in acls:
        refusal = acl.refusal() or _senseless(acl)
        if refusal is not None:
            raise InputError(refusal)
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.acls import add_acls

    add_acls(config, acls)
    print("\n".join(_lines(acls)))
    print(f"added {counted(len(acls), 'ACL')}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    filters = _filters(arguments)
    if not _resources(arguments) and arguments.principal is None:
        raise InputError("name a resource or a --principal: this would remove the ACLs of everybody")
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.acls import remove_acls

    found = _found(config, filters)
    if not found:
        raise InputError("no ACL is found by these options")
    if not arguments.yes and not arguments.json:
        print("\n".join(_lines(found)), flush=True)
    require_confirmation(arguments, f"remove {counted(len(found), 'ACL')}")
    removed = [acl for each in filters for acl in remove_acls(config, each)]
    lines = [*_lines(removed), f"removed {counted(len(removed), 'ACL')}"]
    print_either([_as_json(acl) for acl in removed], lines, is_json=arguments.json)
    return 0
