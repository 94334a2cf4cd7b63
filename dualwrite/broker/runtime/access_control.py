"""What each client may do on this broker, and the ACLs, which are facts of the cluster's journal."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dualwrite.broker.access.acls import Acl, AclFilter, AclOperation, ResourceType
from dualwrite.broker.access.authorizer import Authorizer
from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.facts.acls import AclCreated, AclDeleted
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.ports import Clock

logger = logging.getLogger(__name__)

_MOST_DECISIONS = 10_000
"""Decisions that are remembered until an ACL changes. Most clients ask for the same few."""
_LONGEST_REMEMBERED = 249
"""The most characters of a name in a remembered decision: those of a topic. A stranger may send longer ones."""
_MOST_REFUSALS = 10
"""The most refusals that are logged in a second."""

_Question = tuple[str, str, AclOperation, ResourceType, str]


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The settings of the authorizer.

    :param is_enabled: false without authorizer.class.name: then every client may do everything.
    :param super_users: super.users.
    :param allows_unprotected: allow.everyone.if.no.acl.found.
    """

    is_enabled: bool = False
    super_users: frozenset[str] = frozenset()
    allows_unprotected: bool = False


class AccessControl:
    """The authorizer over the ACLs of ``cluster``. Belongs to the event loop's thread."""

    def __init__(self, cluster: Cluster, settings: AccessSettings, clock: Clock) -> None:
        self.is_enabled = settings.is_enabled
        self._cluster = cluster
        self._authorizer = Authorizer(settings.super_users, allows_unprotected=settings.allows_unprotected)
        self._authorizer.replace(cluster.state.acls.values())
        self._decisions: dict[_Question, bool] = {}
        self._log = LimitedLog(logger, _MOST_REFUSALS, clock.monotonic)

    def may(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """True if ``principal`` may perform ``operation`` on the resource ``name``. Of many refusals a few are logged.

        :param host: the client's address.
        """
        if not self.is_enabled:
            return True
        question = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(question)
        if decision is None:
            decision = self._authorizer.may(*question)
            self._remember(question, decision)
            if not decision:
                question_text = f"may not {operation.name} {resource_type.name} {shown(name)}"
                self._log.warn(f"{shown(principal)} at {host} {question_text}")
        return decision

    def _remember(self, question: _Question, decision: bool) -> None:
        *_, name = question
        if len(name) > _LONGEST_REMEMBERED:
            return
        if len(self._decisions) >= _MOST_DECISIONS:
            self._decisions.clear()
        self._decisions[question] = decision

    def may_somewhere(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """True if ``principal`` may perform ``operation`` on at least one resource of the type."""
        return not self.is_enabled or self._authorizer.may_somewhere(principal, host, operation, resource_type)

    def find(self, wanted: AclFilter) -> list[Acl]:
        """The stored ACLs that ``wanted`` finds."""
        return [acl for acl in self._cluster.state.acls.values() if wanted.finds(acl)]

    def create(self, acls: Iterable[Acl]) -> None:
        """Store those of ``acls``, which must be valid, that are not stored yet. They apply at once. The caller waits
        at the flusher's barrier before it replies."""
        stored = set(self._cluster.state.acls.values())
        new = [acl for acl in dict.fromkeys(acls) if acl not in stored]
        if new:
            self._cluster.record(*(AclCreated(self._cluster.new_id(), acl) for acl in new))
            self._changed()

    def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Delete the ACLs that ``filters`` find, and return them for each filter. The caller waits at the flusher's
        barrier before it replies."""
        stored = self._cluster.state.acls
        matches = [{acl_id: acl for acl_id, acl in stored.items() if wanted.finds(acl)} for wanted in filters]
        leaving = dict.fromkeys(acl_id for matching in matches for acl_id in matching)
        if leaving:
            self._cluster.record(*map(AclDeleted, leaving))
            self._changed()
        return [list(matching.values()) for matching in matches]

    def _changed(self) -> None:
        self._authorizer.replace(self._cluster.state.acls.values())
        self._decisions.clear()
