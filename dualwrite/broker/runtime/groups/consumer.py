"""Consumer groups at run time (KIP-848): heartbeats and timers become facts in ``__consumer_offsets``.

Every answer waits at the flusher's barrier, so that no member holds a partition that a crash could give to another.
"""

import logging
import uuid
from collections.abc import Callable

from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.core.consumer_groups.classic_rules import ClassicRequest, decide_classic
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
from dualwrite.broker.core.consumer_groups.group_configs import problems, with_group_configs
from dualwrite.broker.core.consumer_groups.heartbeat_rules import decide_consumer
from dualwrite.broker.core.consumer_groups.patterns import matching
from dualwrite.broker.core.group_commands import (
    GroupAnswer,
    GroupReply,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    SyncGroup,
    SyncReply,
)
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES
from dualwrite.broker.facts.consumer_groups import MemberState
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import CallLater, GroupCoordinator, Timer, call_later
from dualwrite.broker.runtime.groups.group_log import GroupLog, encode
from dualwrite.ports import Clock, Entropy
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

MaySee = Callable[[str], bool]


class ConsumerGroupCoordinator:
    """Runs the consumer groups' rules. Belongs to the event loop's thread.

    Every step looks up the settings of its group, so a changed setting counts from each member's next heartbeat on. A
    session that runs keeps its end: the member does not know of a shorter heartbeat interval yet.

    :param classic: the coordinator of classic groups: groups change from one protocol to the other.
    """

    def __init__(
        self,
        log: GroupLog,
        cluster: Cluster,
        flusher: Flusher,
        clock: Clock,
        entropy: Entropy,
        classic: GroupCoordinator,
        settings: ConsumerGroupSettings | None = None,
        later: CallLater = call_later,
    ) -> None:
        self.settings = settings or ConsumerGroupSettings()
        self._log = log
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock
        self._entropy = entropy
        self._classic = classic
        classic.serve_member = self._serve_classic
        self._later = later
        self._timers: dict[ConsumerTimerKey, Timer] = {}
        self._is_closed = False

    def start(self) -> None:
        """Start the sessions, at full length, of the members that the journal has.

        Find the topics of their patterns, so that the offsets of these topics are kept. The first heartbeat looks
        again, with the rights of its client.
        """
        for name, configs in self._cluster.state.group_configs.items():
            for problem in problems(configs, self.settings):
                logger.warning("group %s: %s", shown(name), problem)
        for group in self.groups():
            settings = self.settings_of(group.group_id)
            group.matches = {pattern: matching(pattern, self._cluster.topics_by_name) for pattern in group.patterns()}
            for member_id, member in group.subscriptions.items():
                session = ConsumerTimerKey(group.group_id, ConsumerTimerKind.SESSION, member_id)
                classic = member.classic
                own_ms = settings.session_timeout_ms if classic is None else classic.session_timeout_ms
                self._set_timer(SetConsumerTimer(session, own_ms))
                if classic is None and group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                    rebalance = ConsumerTimerKey(group.group_id, ConsumerTimerKind.REBALANCE, member_id)
                    self._set_timer(SetConsumerTimer(rebalance, max(member.rebalance_timeout_ms, 0)))

    async def heartbeat(self, command: ConsumerHeartbeat, may_see: MaySee) -> ConsumerHeartbeatReply:
        """Carry out a heartbeat. The caller may send the reply at once.

        :param may_see: tells if the client may know of a topic that its pattern matches.
        """
        if self._is_closed:
            return ConsumerHeartbeatReply(ErrorCode.NOT_COORDINATOR)
        decision = self._step(command, may_see)
        await self._flusher.barrier()
        return decision.reply

    async def remove(self, command: RemoveMembers) -> tuple[ErrorCode, ...]:
        """Remove members of an existing group. Return the error of each."""
        decision = self._step(command)
        await self._flusher.barrier()
        return decision.removed

    def settings_of(self, group: str) -> ConsumerGroupSettings:
        """The settings of ``group``: the broker's, overridden by those that the group has of its own."""
        configs = self._cluster.group_configs(group)
        return with_group_configs(self.settings, configs) if configs else self.settings

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

    def _serve_classic(self, command: ClassicRequest, ticket: int) -> None:
        """Serve a member of the classic protocol. If its group becomes a classic one, that answers."""
        group, moment = self._log.table.consumers[command.group], self._moment(ticket=ticket)
        settings = self.settings_of(command.group)
        decision = self._decided(lambda: decide_classic(group, command, moment, settings))
        if _is_too_large(decision):
            decision = ConsumerGroupDecision(answer=_too_large(command))
        self._carry_out(command.group, decision)
        if decision.answer is not None:
            self._classic.release(GroupAnswer(ticket, decision.answer))

    def _step(self, command: ConsumerGroupCommand, may_see: MaySee = lambda _: True) -> ConsumerGroupDecision:
        table, name = self._log.table, command.group
        group, classic, moment = table.consumers.get(name), table.groups.get(name), self._moment(may_see)
        settings = self.settings_of(name)
        decision = self._decided(lambda: decide_consumer(group, classic, command, moment, settings))
        if _is_too_large(decision):
            unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            return ConsumerGroupDecision(ConsumerHeartbeatReply(unknown), removed=(unknown,) * len(decision.removed))
        self._carry_out(name, decision)
        return decision

    def _moment(self, may_see: MaySee = lambda _: True, ticket: int = -1) -> ConsumerGroupMoment:
        fresh_id = str(uuid.UUID(bytes=self._entropy.random_bytes(16), version=4))
        topics, version = self._cluster.topics_by_name, self._cluster.state.version
        return ConsumerGroupMoment(topics, version, may_see, fresh_id, self._clock.wall_ms(), ticket)

    def _decided(self, decide: Callable[[], ConsumerGroupDecision]) -> ConsumerGroupDecision:
        try:
            return decide()
        except PartitionConflictError as error:
            self._flusher.fail(error)

    def _carry_out(self, name: str, decision: ConsumerGroupDecision) -> None:
        table = self._log.table
        before = table.consumers.get(name)
        epochs = (-1, -1) if before is None else (before.epoch, before.target_epoch)
        self._log.record(decision.facts)
        group = table.consumers.get(name)
        if group is not None:
            if decision.matches is not None:
                group.matches, group.topics_version = decision.matches, decision.topics_version
            if epochs != (group.epoch, group.target_epoch):
                _tell(group)
        for timer in decision.timers:
            self._set_timer(timer)
        if decision.upgraded is not None:
            logger.info("group %s: the classic group has become a consumer group", shown(name))
            self._classic.hand_over(decision.upgraded)
        if decision.downgraded is not None:
            logger.info("group %s: the consumer group has become a classic group", shown(name))
            self._classic.carry_out(decision.downgraded)

    def _set_timer(self, effect: SetConsumerTimer) -> None:
        if effect.keeps and effect.key in self._timers:
            return
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


def _is_too_large(decision: ConsumerGroupDecision) -> bool:
    return sum(len(key) + len(value or b"") for key, value in map(encode, decision.facts)) > LARGEST_GROUP_BYTES


def _too_large(command: ClassicRequest) -> GroupReply:
    """The answer to a request of the classic protocol that would change too much at once."""
    if isinstance(command, JoinGroup):
        return JoinReply(ErrorCode.UNKNOWN_SERVER_ERROR, command.member_id)
    if isinstance(command, SyncGroup):
        return SyncReply(ErrorCode.UNKNOWN_SERVER_ERROR)
    return HeartbeatReply(ErrorCode.UNKNOWN_SERVER_ERROR)
