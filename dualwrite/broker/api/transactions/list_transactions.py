"""ListTransactions (66), v0-v2 (KIP-664).

Lists the transactional ids that pass the request's filters: state, producer id, from v1 on the time since the last
transaction began (KIP-994), and from v2 on a regular expression that the whole transactional id must match (KIP-1152).
The filter by time ignores the state, as in Apache Kafka: the transaction may have ended, or never existed, so a client
should also filter by state. The answer lists unknown state names; they are no error.

No pattern can keep the broker busy: RE2 matches in linear time, the broker refuses a pattern with a huge program, and a
thread does the filtering.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import re2

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.wire.apis import ApiKey, ListTransactionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_TRANSACTIONS
VERSIONS = range(3)
_DESCRIBE = on_transactional_id(AclOperation.DESCRIBE, "other ids are left out", is_refused=False)
NEEDS = (_DESCRIBE,)

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 256 * 1024  # bytes: a program of at most 4,096 instructions

_STATE_NAMES = frozenset(status.kafka_name for status in TransactionStatus)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the transactional ids that pass every filter."""
    pattern = None
    try:
        if request.transactional_id_pattern:
            pattern = re2.compile(request.transactional_id_pattern, _OPTIONS)
    except re2.error:
        return ListTransactionsResponse(throttle_time_ms=0, error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    now_ms = broker.clock.wall_ms()
    entries = list(broker.coordinator.table.entries.values())
    await broker.flusher.barrier()
    matching = await asyncio.get_running_loop().run_in_executor(None, _filtered, entries, request, pattern, now_ms)
    state = ListTransactionsResponse.TransactionState
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=[name for name in request.state_filters if name not in _STATE_NAMES],
        transaction_states=[
            state(
                transactional_id=entry.transactional_id,
                producer_id=entry.producer.producer_id,
                transaction_state=entry.status.kafka_name,
            )
            for entry in matching
            if broker.may(_DESCRIBE, entry.transactional_id)
        ],
    )


def _filtered(
    entries: Iterable[TransactionRecorded], request: Message, pattern: Any, now_ms: int
) -> list[TransactionRecorded]:
    """The ``entries`` that pass every filter. Runs in a thread: neither they nor the request change meanwhile."""
    states = frozenset(request.state_filters)
    statuses = {status for status in TransactionStatus if not states or status.kafka_name in states}
    producer_ids = frozenset(request.producer_id_filters)
    longer_than_ms: int = request.duration_filter
    return [
        entry
        for entry in entries
        if entry.status in statuses
        and (not producer_ids or entry.producer.producer_id in producer_ids)
        and (longer_than_ms < 0 or now_ms - entry.started_ms > longer_than_ms)
        and (pattern is None or pattern.fullmatch(entry.transactional_id))
    ]
