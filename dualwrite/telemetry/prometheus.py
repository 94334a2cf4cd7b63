"""The metrics of DualWrites for Prometheus, with ``dualwrite[metrics]``.

Create ``metrics = DualWriteMetrics()`` once in a program, and call ``metrics.watch(dual_write)`` for each DualWrite.
The exporter of the process's other metrics serves these, too. The collector reads the counts when Prometheus scrapes,
so a unit of work costs only one observation of its duration.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Engine

from dualwrite.coordinator.rules.machine import Result, Step
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.usage import Usage
from dualwrite.coordinator.steps.observers import Observer
from dualwrite.extras import brought_by
from dualwrite.telemetry.database_looks import DatabaseLooks

with brought_by("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

PREFIX = "dualwrite_"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the histogram's buckets, in seconds. A unit of work takes a millisecond or two, but may wait for
Kafka up to delivery.timeout.ms."""

NO_SLOT = "no_slot"
_RESULTS = {Result.SUCCEEDED: "committed", Result.ROLLED_BACK: "rolled_back", None: NO_SLOT}


class Observable(Protocol):
    """The part of a DualWrite that the metrics use."""

    @property
    def usage(self) -> Usage:
        """The use of the slots; see DualWrite."""

    @property
    def counters(self) -> Counters:
        """The counts of events; see DualWrite."""

    def pending(self) -> int:
        """The number of units of work that the background is finishing; see DualWrite."""

    def add_observer(self, observer: Observer) -> None:
        """Add ``observer``; see DualWrite."""


Value = float | dict[str, int]
Of = TypeVar("Of")


@dataclass(frozen=True, slots=True)
class Metric(Generic[Of]):
    """One metric. Every metric has the label ``application``.

    :param name: the name without the prefix.
    :param label: the second label, whose values are the keys of the metric's dict; empty for a plain number.
    :param read: reads it from a DualWrite, or from its Counters.
    :param total: makes one number of those of several DualWrites of an application.
    """

    name: str
    kind: str
    label: str
    meaning: str
    read: Callable[[Of], Value]
    total: Callable[[Iterable[float]], float] = sum


def _results(counters: Counters) -> Value:
    return {"committed": counters.committed, "rolled_back": counters.rolled_back, "in_doubt": counters.in_doubt}


def _slots(usage: Usage) -> Value:
    return {"used": usage.used, "idle": usage.idle, "pending": usage.pending}


COUNTERS: tuple[Metric[Counters], ...] = (
    Metric("units_total", "counter", "result", "Units of work of this process that have ended.", _results),
    Metric(
        "units_finished_later_total",
        "counter",
        "",
        "Units of work whose Kafka side was left to the background, with any outcome.",
        lambda counters: counters.finished_later,
    ),
    Metric(
        "recoveries_total",
        "counter",
        "",
        "Successful recoveries of a slot; each use of a slot by a process begins with one.",
        lambda counters: counters.recoveries,
    ),
    Metric(
        "dead_letters_total",
        "counter",
        "",
        "Records that DeadLetters has put aside in a dead-letter topic.",
        lambda counters: counters.dead_letters,
    ),
)
GAUGES: tuple[Metric[Observable], ...] = (
    Metric(
        "pending_units",
        "gauge",
        "",
        "Units of work that the background is finishing: in doubt for the consumers of Kafka.",
        lambda dual_write: dual_write.pending(),
    ),
    Metric(
        "process_slots",
        "gauge",
        "state",
        "Slots that this process has leased: used by a unit of work, idle, or pending.",
        lambda dual_write: _slots(dual_write.usage),
    ),
    Metric(
        "pool_size",
        "gauge",
        "",
        "Slots of the application in all its processes together.",
        lambda dual_write: dual_write.usage.pool_size,
        max,
    ),
)
METRICS: tuple[Metric[Any], ...] = (*COUNTERS, *GAUGES)
DURATION = "unit_duration_seconds"
DURATION_MEANING = (
    "Duration of a unit of work by its result, including the wait for a slot; no_slot if it never got one."
)
IN_DATABASE: tuple[Metric[Observable], ...] = (
    Metric(
        "application_slots",
        "gauge",
        "state",
        "Slots of the application by their state in the database: leased, free, or left by a dead owner.",
        lambda dual_write: 0,
    ),
    Metric(
        "heuristic_outcomes",
        "gauge",
        "",
        "Units of work that ended differently on the two sides, and are not acknowledged.",
        lambda dual_write: 0,
    ),
)
"""Metrics that query the database at each scrape. They need an engine."""


class _Timed:
    """Observes the duration of one unit of work."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        self._observe = observe
        self._began = perf_counter()

    def slot_taken(self, transactional_id: str) -> None:
        """Included in the duration."""

    def step_began(self, step: Step) -> None:
        """Included in the duration."""

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """Included in the duration."""

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """Record the duration."""
        self._observe(_RESULTS.get(result, "in_doubt"), perf_counter() - self._began)


class _Timer:
    """Makes a _Timed for each unit of work of one application."""

    def __init__(self, application: str, histogram: Histogram) -> None:
        self._results = {
            result: histogram.labels(application, result)
            for result in ("committed", "rolled_back", "in_doubt", NO_SLOT)
        }

    def unit_began(self) -> _Timed:
        """Begin to measure; see Observer."""
        return _Timed(self._observe)

    def _observe(self, result: str, seconds: float) -> None:
        self._results[result].observe(seconds)


class DualWriteMetrics:
    """The metrics of all watched DualWrites of a process. Several may share a registry.

    :param registry: the registry of the metrics.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        with _guard:
            collector = _collectors.get(registry)
            if collector is None:
                _collectors[registry] = collector = _DualWriteCollector()
                registry.register(collector)
        self._collector = collector

    def watch(self, dual_write: Observable, engine: Engine | None = None) -> None:
        """Report ``dual_write``, a DualWrite or an AsyncDualWrite, from now on until it is garbage-collected. What it
        has counted stays in its application's counters. A second call for it can add the engine. Several of one
        application are reported together.

        :param engine: the engine of its database, to report the database's metrics, too. It costs a few queries at each
            scrape.
        """
        self._collector.watch(dual_write, engine)


class _WatchedDualWrite:
    """A DualWrite as long as it lives, and its counts."""

    def __init__(self, dual_write: Observable) -> None:
        self.reference = weakref.ref(dual_write)
        self.application = dual_write.usage.application
        self.counters = dual_write.counters
        self.engine: Engine | None = None


class _DualWriteCollector(Collector):
    """The metrics of one registry."""

    def __init__(self) -> None:
        self._watched: list[_WatchedDualWrite] = []
        self._looks = DatabaseLooks()
        self._past: dict[str, Counters] = {}
        """The counts of the DualWrites that were collected, by application: a counter never falls."""
        self._durations = Histogram(
            PREFIX + DURATION, DURATION_MEANING, ("application", "result"), buckets=BOUNDS, registry=None
        )

    def watch(self, dual_write: Observable, engine: Engine | None) -> None:
        """See DualWriteMetrics."""
        with _guard:
            self._alive()
            known = next((each for each in self._watched if each.reference() is dual_write), None)
            watched = known or _WatchedDualWrite(dual_write)
            watched.engine = engine or watched.engine
            if known is None:
                self._watched.append(watched)
        if known is None:
            dual_write.add_observer(_Timer(watched.application, self._durations))

    def describe(self) -> Iterator[Family]:
        """The metrics without values. The registry calls it."""
        yield from map(_family, (*METRICS, *IN_DATABASE))
        yield from self._durations.describe()

    def collect(self) -> Iterator[Family]:
        """Every metric with its current value. The registry calls it."""
        living: dict[str, list[tuple[Observable, Engine | None]]] = {}
        counters: dict[str, list[Counters]] = {}
        with _guard:
            for dual_write, watched in self._alive():
                living.setdefault(watched.application, []).append((dual_write, watched.engine))
                counters.setdefault(watched.application, []).append(watched.counters)
            for application, past in self._past.items():
                counters.setdefault(application, []).append(past)
        for counter in COUNTERS:
            yield _reported(counter, counters)
        for gauge in GAUGES:
            yield _reported(gauge, {name: [each for each, _ in members] for name, members in living.items()})
        yield from self._durations.collect()
        slots, waiting = families = [_family(metric) for metric in IN_DATABASE]
        usages = {name: [(each.usage, engine) for each, engine in members] for name, members in living.items()}
        for application, found in self._looks.of(usages):
            _add(slots, application, found.slots)
            _add(waiting, application, found.outcomes)
        yield from families

    def _alive(self) -> list[tuple[Observable, _WatchedDualWrite]]:
        """The DualWrites that live. The counts of the others become part of the past. Call it under the guard."""
        alive = []
        for watched in self._watched:
            dual_write = watched.reference()
            if dual_write is None:
                past = self._past.setdefault(watched.application, Counters(threading.Lock()))
                for field in fields(Counters):
                    past.add(field.name, getattr(watched.counters, field.name))
            else:
                watched.counters = dual_write.counters  # a forked child has its own
                alive.append((dual_write, watched))
        self._watched = [watched for _, watched in alive]
        return alive


_guard = threading.Lock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _DualWriteCollector] = weakref.WeakKeyDictionary()


def _reported(metric: Metric[Of], by_application: Mapping[str, Iterable[Of]]) -> Family:
    """``metric`` with a value for each application."""
    family = _family(metric)
    for application, members in by_application.items():
        _add(family, application, _together(metric, [metric.read(member) for member in members]))
    return family


def _together(metric: Metric[Any], values: Sequence[Value]) -> Value:
    """One value for several DualWrites of an application: two samples of one name and labels would contradict."""
    if not metric.label:
        return metric.total(value for value in values if not isinstance(value, dict))
    by_label = [value for value in values if isinstance(value, dict)]
    return {key: int(metric.total(value[key] for value in by_label)) for key in by_label[0]}


def _family(metric: Metric[Any]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + metric.name, metric.meaning, labels=["application", metric.label][: 1 + bool(metric.label)])


def _add(family: Family, application: str, value: Value) -> None:
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    for labels, number in value.items() if isinstance(value, dict) else [("", value)]:
        family.add_metric([application, labels][: 1 + bool(labels)], number)
