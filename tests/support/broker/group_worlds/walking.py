"""Random histories of one group of consumers: clients of either protocol that come, go, die and follow late.

A seed decides everything. Always: no partition is held by two clients that the group knows; no epoch falls, whichever
protocol the group has; the records say all that a restart needs. In the end every partition is held by a client that
reads it.
"""

import random
from collections.abc import Callable

from dualwrite.broker.core.consumer_groups.commands import ConsumerTimerKey, ConsumerTimerKind
from dualwrite.broker.core.group_commands import JoinReply, TimerKey, TimerKind
from dualwrite.broker.facts.assignments import TopicIdPartition
from tests.support.broker.group_worlds.consumer import GROUP, FollowingClient
from tests.support.broker.group_worlds.mixed import COOPERATIVE, EAGER, ClassicClient, MixedWorld

STEPS = 80
_CLIENTS = 4
_SUBSCRIPTIONS = (("t",), ("u",), ("t", "u"), ("t", "missing"))
_ROUNDS = 60
"""More than enough for every client to follow."""

AnyClient = FollowingClient | ClassicClient
AnyTimer = ConsumerTimerKey | TimerKey


def walk(seed: int, *, with_classic: bool = True) -> MixedWorld:
    """One history, to its end.

    :raises AssertionError: if the group broke a rule. The message begins with the seed.
    """
    walked = GroupWalk(random.Random(seed), with_classic=with_classic)
    try:
        for _ in range(STEPS):
            walked.step()
        walked.end()
    except AssertionError as error:
        raise AssertionError(f"walk({seed}, with_classic={with_classic}): {error}") from error
    return walked.world


class GroupWalk:
    """A world, its clients by number, and what may happen to them."""

    def __init__(self, rng: random.Random, *, with_classic: bool) -> None:
        self.rng = rng
        self.world = MixedWorld({"t": 4, "u": 3})
        self.clients: dict[int, AnyClient] = {}
        self._with_classic = with_classic
        self._assignor = rng.choice([EAGER, COOPERATIVE])
        self._topics: dict[int, tuple[str, ...]] = {}
        self._made = 0
        self._epoch = 0
        self._events: list[tuple[int, Callable[[], None]]] = [
            (30, self._act),
            (10, self._act_for_a_while),
            (15, self._follow),
            (10, self._start),
            (3, self._lose_an_answer),
            (3, self._leave),
            (2, self._die),
            (2, self._fire_a_timer),
            (1, self._change_a_topic),
            (1, self._restart),
            (2, self._settle),
        ]

    def step(self) -> None:
        """Let something happen."""
        weights = [weight for weight, _ in self._events]
        ((_, happen),) = self.rng.choices(self._events, weights)
        happen()
        self.check()

    # --- what may happen

    @property
    def _number(self) -> int:
        return self.rng.randrange(_CLIENTS)

    @property
    def _coin(self) -> bool:
        return self.rng.random() < 0.5

    def _start(self) -> None:
        number, is_static, is_classic = self._number, self._coin, self._coin and self._with_classic
        if number in self.clients:
            return
        self._made += 1
        instance_id = f"i{number}" if is_static else None
        # A classic group does not look at what a static member that comes back subscribes to.
        topics = self._topics.setdefault(number, self.rng.choice(_SUBSCRIPTIONS))
        self.clients[number] = (
            ClassicClient(topics, self._assignor, instance_id, needs_member_id=self._coin)
            if is_classic
            else FollowingClient(f"m{self._made}", topics, instance_id)
        )

    def _act(self) -> None:
        self._let_act(self.clients.get(self._number))

    def _act_for_a_while(self) -> None:
        client = self.clients.get(self._number)
        for _ in range(4):
            self._let_act(client)

    def _let_act(self, client: AnyClient | None) -> None:
        if isinstance(client, ClassicClient):
            client.act(self.world)
        elif client is not None:
            client.beat(self.world)
        self._note_an_end()

    def _follow(self) -> None:
        client = self.clients.get(self._number)
        if isinstance(client, FollowingClient):
            client.follow()

    def _lose_an_answer(self) -> None:
        client = self.clients.get(self._number)
        if isinstance(client, ClassicClient):
            client.lose_requests()
        elif client is not None:
            client.beat(self.world, is_answer_lost=True)

    def _leave(self) -> None:
        client, for_a_while = self.clients.pop(self._number, None), self._coin
        if isinstance(client, ClassicClient):
            client.leave(self.world)
        elif client is not None:
            epoch = -2 if for_a_while and client.instance_id is not None else -1
            self.world.beat(client.member_id, epoch, instance_id=client.instance_id)

    def _die(self) -> None:
        self.clients.pop(self._number, None)

    def _fire_a_timer(self) -> None:
        keys = [key for key in (*self.world.timers, *self.world.classic_timers) if not self._must_not_fire(key)]
        if keys:
            self._fire(self.rng.choice(keys))

    def _must_not_fire(self, key: AnyTimer) -> bool:
        """A classic group goes on without a static member that is late, which may still hold partitions (KIP-345)."""
        classic = self.world.table.groups.get(GROUP)
        if classic is None or not isinstance(key, TimerKey) or key.kind is not TimerKind.JOIN:
            return False
        members = classic.members.values()
        return any(member.instance_id is not None and member.member_id not in classic.joining for member in members)

    def _fire(self, key: AnyTimer) -> None:
        if isinstance(key, ConsumerTimerKey):
            self.world.fire(key.kind, key.member_id)
        else:
            self.world.fire_classic(key.kind, key.member_id)
        self._note_an_end()

    def _change_a_topic(self) -> None:
        size = self.rng.randint(1, 6)
        if "u" in self.world.topics and size < self.world.topics["u"].partitions:
            self.world.delete("u")
        self.world.create("u", size)

    def _restart(self) -> None:
        self.world.restart(compacted=self._coin)
        if not self.world.is_consumer_group:
            self._epoch = 0  # a classic group records a generation once it is complete
        for client in self.clients.values():
            if isinstance(client, ClassicClient):
                client.lose_requests()

    def _settle(self) -> None:
        for _ in range(12):
            self._go_on()

    # --- what must be true

    def check(self) -> None:
        """Check what is true at any time."""
        members = self.world.members()
        held = [
            partition for client in self.clients.values() if client.member_id in members for partition in client.held
        ]
        assert len(held) == len(set(held)), f"two members hold a partition: {self.clients}"
        consumers, classic = self.world.table.consumers.get(GROUP), self.world.table.groups.get(GROUP)
        assert consumers is None or classic is None
        epoch = 0 if classic is None else classic.generation
        if consumers is not None:
            consumers.check()
            assert consumers.target_epoch <= consumers.epoch
            epoch = consumers.epoch
        self._note_an_end()
        assert epoch >= self._epoch, f"the epoch falls from {self._epoch} to {epoch}"
        self._epoch = epoch if members else 0

    def _note_an_end(self) -> None:
        """An empty group may begin again from the first epoch."""
        if not self.world.members():
            self._epoch = 0

    def end(self) -> None:
        """Let the dead be noticed and the living follow: every partition gets an owner."""
        self._check_records()
        for _ in range(_ROUNDS):
            self._go_on()
        topics = self.world.topics
        read = {name for client in self.clients.values() for name in client.topics if name in topics}
        wanted = {
            TopicIdPartition(topics[name].topic_id, number)
            for name in read
            for number in range(topics[name].partitions)
        }
        held = {partition for client in self.clients.values() for partition in client.held}
        assert held == wanted, f"in the end {self.clients} of {self.world.table}"

    def _check_records(self) -> None:
        for compacted in (False, True):
            group, known = self.world.replayed(compacted=compacted).consumers.get(GROUP), None
            if self.world.is_consumer_group:
                known = self.world.group.copy()
                known.matches, known.topics_version = {}, -1
            assert group == known

    def _go_on(self) -> None:
        """Let every client do something, and what is over be over."""
        for client in self.clients.values():
            self._let_act(client)
            if isinstance(client, FollowingClient):
                client.follow()
            self.check()
        self._end_the_dead()

    def _end_the_dead(self) -> None:
        """End the sessions of members that no client is, and the first wait of a classic group for more members."""
        for key in list(self.world.timers):
            if key.kind is ConsumerTimerKind.SESSION and self._is_dead(key.member_id) and key in self.world.timers:
                self._fire(key)
        for classic_key in list(self.world.classic_timers):
            group = self.world.table.groups.get(GROUP)
            is_over = classic_key.kind is TimerKind.SESSION and self._is_dead(classic_key.member_id)
            begins = classic_key.kind is TimerKind.JOIN and group is not None and group.is_initial
            if (is_over or begins) and classic_key in self.world.classic_timers:
                self._fire(classic_key)

    def _is_dead(self, member_id: str) -> bool:
        """True if the member is no client, nor a client that does not know its id yet."""
        group = self.world.table.groups.get(GROUP)
        waiting = None if group is None else group.joining.get(member_id)

        def is_member(client: AnyClient) -> bool:
            ticket = client.joining if isinstance(client, ClassicClient) else None
            reply = None if ticket is None else self.world.answers.get(ticket)
            is_told = isinstance(reply, JoinReply) and reply.member_id == member_id
            return client.member_id == member_id or is_told or (ticket is not None and ticket == waiting)

        return not any(map(is_member, self.clients.values()))
