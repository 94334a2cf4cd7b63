"""The spans of units of work, as OpenTelemetry's own SDK gets them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.machine import Step
from dualwrite.errors import KafkaUnavailableError, NoFreeSlotError
from dualwrite.telemetry.opentelemetry import SLOT_SPAN, STEP_SPANS, UNIT_SPAN, Tracing, trace_headers
from tests.support.coordinator.fake_kafka import FakeKafka, Fault

Make = Callable[..., DualWrite]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def write(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", value="one", headers=[*trace_headers(), ("a", b"b")])


def test_a_unit_is_a_span_under_the_current_one_and_its_steps_are_under_it(
    make: Make, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    dual_write = make()
    dual_write.add_observer(Tracing(tracer))
    with tracer.start_as_current_span("request") as request:
        write(dual_write)
    names = [span.name for span in exporter.get_finished_spans()]
    steps = ("BEGIN_DATABASE", "BEGIN_KAFKA", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA")
    assert names == [SLOT_SPAN, *(STEP_SPANS[Step[step]] for step in steps), UNIT_SPAN, "request"]
    unit = spans(exporter)[UNIT_SPAN]
    assert unit.parent is not None
    assert unit.parent.span_id == request.get_span_context().span_id
    assert dict(unit.attributes or {}) == {"dualwrite.transactional_id": "orders-0", "dualwrite.result": "succeeded"}
    assert unit.status.status_code is StatusCode.UNSET
    for name in names[:-2]:
        parent = spans(exporter)[name].parent
        assert parent is not None
        assert parent.span_id == unit.context.span_id
    commit = spans(exporter)[STEP_SPANS[Step.COMMIT_KAFKA]]
    assert (commit.kind, dict(commit.attributes or {})) == (SpanKind.CLIENT, {"messaging.system": "kafka"})
    assert spans(exporter)[STEP_SPANS[Step.STORE_STATE]].kind is SpanKind.INTERNAL


def test_a_step_that_fails_is_an_error_and_so_is_its_unit(
    make: Make, kafka: FakeKafka, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    dual_write = make()
    dual_write.add_observer(Tracing(tracer))
    kafka.fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write(dual_write)
    for name in (STEP_SPANS[Step.PREPARE_KAFKA], UNIT_SPAN):
        span = spans(exporter)[name]
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "KafkaUnavailableError"
        assert [event.name for event in span.events] == ["exception"]
    assert (spans(exporter)[UNIT_SPAN].attributes or {})["dualwrite.result"] == "rolled_back"
    assert spans(exporter)[STEP_SPANS[Step.ABORT_KAFKA]].status.status_code is StatusCode.UNSET


def test_a_unit_that_the_background_finishes_has_succeeded(
    make: Make, kafka: FakeKafka, tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    dual_write = make()
    dual_write.add_observer(Tracing(tracer))
    failing = {"commit"}
    kafka.fault = lambda request: Fault.BEFORE if request in failing else Fault.NONE
    write(dual_write)
    assert spans(exporter)[STEP_SPANS[Step.COMMIT_KAFKA]].status.status_code is StatusCode.ERROR
    assert STEP_SPANS[Step.FINISH_LATER] in spans(exporter)
    assert spans(exporter)[UNIT_SPAN].status.status_code is StatusCode.UNSET


def test_a_unit_that_got_no_slot_is_an_error(make: Make, tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    holder, waiter = make(), make(acquire_timeout=0)
    waiter.add_observer(Tracing(tracer))
    write(holder)
    with pytest.raises(NoFreeSlotError):
        write(waiter)
    assert list(spans(exporter)) == [SLOT_SPAN, UNIT_SPAN]
    unit = spans(exporter)[UNIT_SPAN]
    assert unit.status.status_code is StatusCode.ERROR
    assert dict(unit.attributes or {}) == {"dualwrite.result": "none", "error.type": "NoFreeSlotError"}


def test_the_current_span_goes_into_a_records_headers(tracer: Tracer) -> None:
    assert trace_headers() == []
    with tracer.start_as_current_span("request") as request:
        ((key, value),) = trace_headers()
    assert key == "traceparent"
    assert value is not None
    assert f"{request.get_span_context().trace_id:032x}".encode() in value


def test_without_a_tracer_the_global_ones_are_used(make: Make) -> None:
    dual_write = make()
    dual_write.add_observer(Tracing())
    write(dual_write)  # nothing is set up: its spans go nowhere
    assert dual_write.counters.committed == 1


def test_every_step_has_a_span_of_its_own_name() -> None:
    assert set(STEP_SPANS) == set(Step) - {Step.RUN}
    assert len(set(STEP_SPANS.values())) == len(STEP_SPANS)
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    for name in (UNIT_SPAN, SLOT_SPAN, *STEP_SPANS.values()):
        assert f"`{name}`" in page
