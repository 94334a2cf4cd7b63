"""Consumer groups at run time (KIP-848): heartbeats and timers become facts in ``__consumer_offsets``.

Every answer waits at the flusher's barrier, so that no member holds a partition that a crash could give to another.
"""

import logging
import uuid
from collections.abc import Callable

from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupCommand,
    ConsumerGroupDecision,
    ConsumerGroupMoment,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerTimerKey,
    ConsumerTimerKind,
    RemoveMembers,
    SetConsumerTimer,
)
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup, PartitionConflictError
from dualwrite.broker.core.consumer_groups.heartbeat_rules import decide_consumer
from dualwrite.broker.core.consumer_groups.patterns import matching
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES
from dualwrite.broker.facts.consumer_groups import MemberState
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import CallLater, Timer, call_later
from dualwrite.broker.runtime.groups.group_log import GroupLog, encode
from dualwrite.ports import Entropy
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

MaySee = Callable[[str], bool]


class ConsumerGroupCoordinator:
    """Runs the consumer groups' rules. Belongs to the event loop's thread."""

    def __init__(
        self,
        log: GroupLog,
        cluster: Cluster,
        flusher: Flusher,
        entropy: Entropy,
        settings: ConsumerGroupSettings | None = None,
        later: CallLater = call_later,
    ) -> None:
        self.settings = settings or ConsumerGroupSettings()
        self._log = log
        self._cluster = cluster
        self._flusher = flusher
        self._entropy = entropy
        self._later = later
        self._timers: dict[ConsumerTimerKey, Timer] = {}
        self._is_closed = False

    def start(self) -> None:
        """Start the sessions, at full length, of the members that the journal has.

        Find the topics of their patterns, so that the offsets of these topics are kept. The first heartbeat looks
        again, with the rights of its client.
        """
        for group in self.groups():
            group.matches = {pattern: matching(pattern, self._cluster.topics_by_name) for pattern in group.patterns()}
            for member_id, member in group.subscriptions.items():
                session = ConsumerTimerKey(group.group_id, ConsumerTimerKind.SESSION, member_id)
                self._set_timer(SetConsumerTimer(session, self.settings.session_timeout_ms))
                if group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                    rebalance = ConsumerTimerKey(group.group_id, ConsumerTimerKind.REBALANCE, member_id)
                    self._set_timer(SetConsumerTimer(rebalance, max(member.rebalance_timeout_ms, 0)))

    async def heartbeat(self, command: ConsumerHeartbeat, may_see: MaySee) -> ConsumerHeartbeatReply:
        """Carry out a heartbeat. The caller may send the reply at once.

        :param may_see: tells if the client may know of a topic that its pattern matches.
        """
        if self._is_closed:
            return ConsumerHeartbeatReply(ErrorCode.NOT_COORDINATOR)
        fresh_id = str(uuid.UUID(bytes=self._entropy.random_bytes(16), version=4))
        decision = self._step(command, may_see, fresh_id)
        await self._flusher.barrier()
        return decision.reply

    async def remove(self, command: RemoveMembers) -> tuple[ErrorCode, ...]:
        """Remove members of an existing group. Return the error of each."""
        decision = self._step(command)
        await self._flusher.barrier()
        return decision.removed

    def group(self, name: str) -> ConsumerGroup | None:
        """The consumer group called ``name``."""
        return self._log.table.consumers.get(name)

    def groups(self) -> list[ConsumerGroup]:
        """Every consumer group."""
        return list(self._log.table.consumers.values())

    def close(self) -> None:
        """Cancel all timers, and answer no more heartbeats; for a clean stop."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _step(
        self, command: ConsumerGroupCommand, may_see: MaySee = lambda _: True, fresh_id: str = ""
    ) -> ConsumerGroupDecision:
        table = self._log.table
        moment = ConsumerGroupMoment(self._cluster.topics_by_name, self._cluster.state.version, may_see, fresh_id)
        before = table.consumers.get(command.group)
        try:
            decision = decide_consumer(before, table.groups.get(command.group), command, moment, self.settings)
        except PartitionConflictError as error:
            self._flusher.fail(error)
        if sum(len(key) + len(value or b"") for key, value in map(encode, decision.facts)) > LARGEST_GROUP_BYTES:
            return ConsumerGroupDecision(ConsumerHeartbeatReply(ErrorCode.UNKNOWN_SERVER_ERROR))
        epochs = (-1, -1) if before is None else (before.epoch, before.target_epoch)
        self._log.record(decision.facts)
        group = table.consumers.get(command.group)
        if group is not None:
            if decision.matches is not None:
                group.matches, group.topics_version = decision.matches, decision.topics_version
            if epochs != (group.epoch, group.target_epoch):
                _tell(group)
        for timer in decision.timers:
            self._set_timer(timer)
        return decision

    def _set_timer(self, effect: SetConsumerTimer) -> None:
        timer = self._timers.pop(effect.key, None)
        if timer is not None:
            timer.cancel()
        if effect.delay_ms is not None:
            self._timers[effect.key] = self._later(effect.delay_ms / 1000, lambda: self._time_is_up(effect.key))

    def _time_is_up(self, key: ConsumerTimerKey) -> None:
        self._timers.pop(key, None)
        logger.info("group %s: member %s did not %s in time", shown(key.group), shown(key.member_id), key.kind.value)
        self._step(key)


def _tell(group: ConsumerGroup) -> None:
    logger.info(
        "group %s is %s in epoch %d with %d members",
        shown(group.group_id), group.state.value, group.epoch, len(group.subscriptions),
    )  # fmt: skip
