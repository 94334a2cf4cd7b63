"""ListTransactions (66), v0-v2 (KIP-664).

Filters by state and producer id, from v1 on by the time since the last transaction began (KIP-994; as in Apache Kafka
that may have ended, or never been, so that states are to be asked for too), from v2 on by a regular expression of RE2
that the whole transactional id must match (KIP-1152). It is matched in linear time, one that would become a huge
program is refused, and the filtering is done in a thread, as long ids take their time all the same: no pattern can keep
the broker busy. State names that do not exist are answered, not refused. ACL: none yet.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import re2

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.wire.apis import ApiKey, ListTransactionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_TRANSACTIONS
VERSIONS = range(3)

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
    found = await asyncio.get_running_loop().run_in_executor(None, _filtered, entries, request, pattern, now_ms)
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
            for entry in found
        ],
    )


def _filtered(
    entries: Iterable[TransactionRecorded], request: Message, pattern: Any, now_ms: int
) -> list[TransactionRecorded]:
    """Those of ``entries`` that pass every filter; they and the request do not change meanwhile."""
    wanted = frozenset(request.state_filters)
    statuses = {status for status in TransactionStatus if not wanted or status.kafka_name in wanted}
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
