"""Traces of units of work by OpenTelemetry, with ``dualwrite[opentelemetry]``.

``dual_write.add_observer(Tracing())`` makes a span for each unit of work and for each of its steps. The unit's span is
a child of the current span at the start of the block, and does not become the current span itself. Other spans inside
the block are its siblings, under the same parent. So the traces are right with asyncio and threads alike.
"""

from collections.abc import Mapping

from dualwrite.coordinator.rules.machine import Result, Step
from dualwrite.extras import brought_by
from dualwrite.version import __version__

with brought_by("opentelemetry"):
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

UNIT_SPAN = "dualwrite unit"
SLOT_SPAN = "dualwrite wait for slot"

STEP_SPANS: Mapping[Step, str] = {
    Step.BEGIN_DATABASE: "dualwrite begin database",
    Step.BEGIN_KAFKA: "dualwrite begin kafka",
    Step.PREPARE_KAFKA: "dualwrite prepare kafka",
    Step.STORE_STATE: "dualwrite store state",
    Step.COMMIT_DATABASE: "dualwrite commit database",
    Step.COMMIT_KAFKA: "dualwrite commit kafka",
    Step.READ_DECISION: "dualwrite read decision",
    Step.ROLLBACK_DATABASE: "dualwrite rollback database",
    Step.ABORT_KAFKA: "dualwrite abort kafka",
    Step.FINISH_LATER: "dualwrite finish later",
}
"""Span names by step."""

_OF_KAFKA = (Step.BEGIN_KAFKA, Step.PREPARE_KAFKA, Step.COMMIT_KAFKA, Step.ABORT_KAFKA)

TRANSACTIONAL_ID = "dualwrite.transactional_id"
RESULT = "dualwrite.result"
_MESSAGING_SYSTEM = "messaging.system"  # OpenTelemetry's semantic conventions for messaging
_ERROR_TYPE = "error.type"


class _UnitSpans:
    """The spans of one unit of work."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._unit = tracer.start_span(UNIT_SPAN)
        self._inside = trace.set_span_in_context(self._unit)
        self._step: Span | None = self._child(SLOT_SPAN)

    def slot_taken(self, transactional_id: str) -> None:
        """Store the slot's transactional id, and end the span of the wait for the slot; see UnitObserver."""
        self._unit.set_attribute(TRANSACTIONAL_ID, transactional_id)
        self._end_step(None)

    def step_began(self, step: Step) -> None:
        """Begin a step's span; see UnitObserver."""
        self._step = self._child(STEP_SPANS[step], of_kafka=step in _OF_KAFKA)

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """End the step's span; see UnitObserver."""
        self._end_step(error)

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """End the unit's span; see UnitObserver."""
        self._end_step(error)
        self._unit.set_attribute(RESULT, "none" if result is None else result.name.lower())
        # A unit of work may succeed with an error: an error of Kafka's that recovery corrects in the background.
        _end(self._unit, None if result is Result.SUCCEEDED else error, is_failed=result is not Result.SUCCEEDED)

    def _child(self, name: str, *, of_kafka: bool = False) -> Span:
        kind = SpanKind.CLIENT if of_kafka else SpanKind.INTERNAL
        return self._tracer.start_span(
            name, self._inside, kind, attributes={_MESSAGING_SYSTEM: "kafka"} if of_kafka else None
        )

    def _end_step(self, error: BaseException | None) -> None:
        if self._step is not None:
            _end(self._step, error, is_failed=error is not None)
            self._step = None


class Tracing:
    """An Observer: ``dual_write.add_observer(Tracing())``.

    :param tracer: by default a tracer of the global provider.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("dualwrite", __version__)

    def unit_began(self) -> _UnitSpans:
        """Begin a span; see Observer."""
        return _UnitSpans(self._tracer)


def trace_headers() -> list[tuple[str, bytes | None]]:
    """The current span as headers of a record (``traceparent``, and others that the global propagator writes), for
    ``tx.produce(…, headers=[*trace_headers(), …])``. A consumer that reads them continues the trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [(key, value.encode()) for key, value in carrier.items()]


def _end(span: Span, error: BaseException | None, *, is_failed: bool) -> None:
    if error is not None:
        span.set_attribute(_ERROR_TYPE, type(error).__qualname__)
        span.record_exception(error)
    if is_failed:
        span.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
    span.end()
