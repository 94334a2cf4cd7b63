"""The dashboard and the alerts ask for metrics and labels that the broker has, and each alert fires when it should."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dualwrite.broker.metrics.catalogue import METRICS
from dualwrite.broker.metrics.metric import PREFIX
from dualwrite.wire.error_codes import ErrorCode
from tests.support.monitoring.measured import fetch, measured_broker

HERE = Path(__file__).parents[2] / "examples" / "monitoring"
SUFFIXES = {"counter": ("total",), "gauge": ("",), "histogram": ("bucket", "count", "sum")}
OF_PROMETHEUS = {"up": {"job", "instance"}}
LABELS = {f"{PREFIX}{metric.name}": {*metric.labels, "job", "instance"} for metric in METRICS}

_NAME = re.compile(r"\b(?:dualwrite_\w+|up(?=\{))")
_GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a broker that has just started."""
    with measured_broker(tmp_path_factory.mktemp("scraped")) as broker:
        _, text = fetch(broker.url)
    return text


@pytest.fixture(scope="module")
def scraped(scrape: str) -> set[str]:
    """The names of all series that the broker has, or will have once there is something to count."""
    return {
        f"{family.name}_{suffix}".rstrip("_")
        for family in text_string_to_metric_families(scrape)
        for suffix in SUFFIXES.get(family.type, ())
    }


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Each query, and the text in which its labels are shown."""
    for rule in alerts():
        yield rule["expr"], " ".join(rule["annotations"].values())
    for panel in json.loads((HERE / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def labels_of(series: str) -> set[str]:
    if series in OF_PROMETHEUS:
        return OF_PROMETHEUS[series]
    plain = re.sub(r"_(bucket|count|sum)$", "", series)
    return LABELS[plain] | ({"le"} if plain != series else set())


def unknown(query: str, shown: str, scraped: set[str]) -> set[str]:
    """What ``query`` asks for, or ``shown`` shows, that the broker does not have."""
    names = set(_NAME.findall(query))
    missing = names - scraped - set(OF_PROMETHEUS)
    known = {label for name in names - missing for label in labels_of(name)}
    grouped = {label.strip() for group in _GROUPED.findall(query) for label in group.split(",")}
    asked = grouped | set(_MATCHED.findall(query)) | set(_LEGEND.findall(shown))
    shown_labels = set(_LEGEND.findall(shown)) - (grouped or known)  # an aggregation has no others
    return missing | (asked - known) | shown_labels


@pytest.mark.slow_cases
@pytest.mark.parametrize(("query", "shown"), list(queries()))
def test_a_query_asks_for_what_the_broker_has(query: str, shown: str, scraped: set[str]) -> None:
    assert _NAME.findall(query), "it asks for some metric"
    assert unknown(query, shown, scraped) == set()


@pytest.mark.parametrize(
    ("query", "shown", "found"),
    [
        ("dualwrite_broker_connection", "", {"dualwrite_broker_connection"}),
        ("dualwrite_broker_requests", "", {"dualwrite_broker_requests"}),
        ("sum by (topics) (dualwrite_broker_topic_bytes)", "", {"topics"}),
        ('dualwrite_broker_groups{status="Stable"}', "", {"status"}),
        ("sum by (topic) (dualwrite_broker_group_lag)", "{{group}}", {"group"}),
        ("dualwrite_broker_fsync_round_seconds", "", {"dualwrite_broker_fsync_round_seconds"}),
        ("rate(dualwrite_broker_fsync_round_seconds_bucket[5m])", "{{le}}", set()),
    ],
)
def test_a_query_for_what_the_broker_lacks_is_noticed(
    query: str, shown: str, found: set[str], scraped: set[str]
) -> None:
    assert unknown(query, shown, scraped) == found


def test_every_metric_of_a_scrape_is_in_the_catalogue(scraped: set[str]) -> None:
    expected = {
        f"{PREFIX}{re.sub('_total$', '', metric.name)}_{suffix}".rstrip("_")
        for metric in METRICS
        for suffix in SUFFIXES[metric.kind]
    }
    assert {name for name in scraped if name.startswith(PREFIX)} == expected


def test_the_dashboard_shows_every_metric() -> None:
    asked = {name for query, _ in queries() for name in _NAME.findall(query)}
    plain = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    assert set(LABELS) - plain == {f"{PREFIX}partitions"}, "it chooses the broker by that one"
    assert f"{PREFIX}partitions" in (HERE / "dashboard.json").read_text()


def test_the_dashboards_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads((HERE / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    for panel in panels:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_an_error_of_an_alert_is_counted_from_zero(scrape: str) -> None:
    """Prometheus sees no increase in a series that begins with the first error."""
    samples = [sample for family in text_string_to_metric_families(scrape) for sample in family.samples]
    zeros = [sample.labels for sample in samples if sample.name == f"{PREFIX}request_errors_total" and not sample.value]
    storage = [labels["api"] for labels in zeros if labels["error"] == ErrorCode.KAFKA_STORAGE_ERROR.name]
    assert sorted(storage) == ["FETCH", "LIST_OFFSETS"]


# --- promtool

FIRING: Mapping[str, Mapping[str, str]] = {
    "BrokerDown": {'up{job="dualwrite"}': "0x20"},
    "BrokerKeepsRestarting": {"dualwrite_broker_start_time_seconds": "10x2 _x2 100x2 200x2 300x20"},
    "TransactionHoldsReadersBack": {"dualwrite_broker_blocking_transaction_open_time_max_ms": "300001+15000x20"},
    "TransactionLeftInDoubt": {
        "dualwrite_broker_active_transaction_open_time_max_ms": "300001+15000x20",
        "dualwrite_broker_in_doubt_transactions": "1x20",
    },
    "HangingTransaction": {"dualwrite_broker_hanging_transactions": "1x60"},
    "GroupFallsBehind": {
        'dualwrite_broker_group_lag{group="g",topic="t",partition="0"}': "6000x80",
        'dualwrite_broker_group_lag{group="g",topic="t",partition="1"}': "6000x80",
    },
    "DiskIsNearlyFull": {"dualwrite_broker_volume_free_bytes": "9x40", "dualwrite_broker_volume_bytes": "100x40"},
    "DiskIsFillingUp": {"dualwrite_broker_volume_free_bytes": "100000-20x2000"},
    "DiskCannotBeWritten": {"dualwrite_broker_disk_writable": "0x20"},
    "DiskIsSlow": {
        'dualwrite_broker_fsync_round_seconds_bucket{le="0.3"}': "0x80",
        'dualwrite_broker_fsync_round_seconds_bucket{le="1.0"}': "0+10x80",
        'dualwrite_broker_fsync_round_seconds_bucket{le="+Inf"}': "0+10x80",
    },
    "BrokerIsBusy": {
        'dualwrite_broker_request_seconds_sum{api="FETCH",part="local"}': "0+7x80",
        'dualwrite_broker_request_seconds_sum{api="PRODUCE",part="local"}': "0+6x80",
    },
    "StorageErrors": {'dualwrite_broker_request_errors_total{api="FETCH",error="KAFKA_STORAGE_ERROR"}': "0+1x20"},
    "FailedAuthentications": {
        'dualwrite_broker_failed_authentications_total{mechanism="PLAIN",reason="credentials"}': "0+16x60"
    },
    "RefusedRequests": {
        'dualwrite_broker_authorization_refusals_total{operation="WRITE",resource_type="TOPIC"}': "0+16x60"
    },
}
"""For each alert a history, in steps of 15 seconds, at whose end it fires."""
QUIET: Mapping[str, Mapping[str, str]] = {
    "BrokerDown": {'up{job="dualwrite"}': "1x20"},
    "BrokerKeepsRestarting": {"dualwrite_broker_start_time_seconds": "10x5 _x5 100x5 200x20"},
    "TransactionHoldsReadersBack": {"dualwrite_broker_blocking_transaction_open_time_max_ms": "299999x20"},
    "TransactionLeftInDoubt": {
        "dualwrite_broker_active_transaction_open_time_max_ms": "300001+15000x20",
        "dualwrite_broker_in_doubt_transactions": "0x20",
    },
    "HangingTransaction": {"dualwrite_broker_hanging_transactions": "0x60"},
    "GroupFallsBehind": {'dualwrite_broker_group_lag{group="g",topic="t",partition="0"}': "10000x80"},
    "DiskIsNearlyFull": {"dualwrite_broker_volume_free_bytes": "11x40", "dualwrite_broker_volume_bytes": "100x40"},
    "DiskIsFillingUp": {"dualwrite_broker_volume_free_bytes": "100000-1x2000"},
    "DiskCannotBeWritten": {"dualwrite_broker_disk_writable": "1x20"},
    "DiskIsSlow": {
        'dualwrite_broker_fsync_round_seconds_bucket{le="0.3"}': "0+10x80",
        'dualwrite_broker_fsync_round_seconds_bucket{le="+Inf"}': "0+10x80",
    },
    "BrokerIsBusy": {'dualwrite_broker_request_seconds_sum{api="FETCH",part="wait"}': "0+900x80"},
    "StorageErrors": {'dualwrite_broker_request_errors_total{api="FETCH",error="OFFSET_OUT_OF_RANGE"}': "0+1x20"},
    "FailedAuthentications": {
        'dualwrite_broker_failed_authentications_total{mechanism="PLAIN",reason="credentials"}': "0+14x60"
    },
    "RefusedRequests": {
        'dualwrite_broker_authorization_refusals_total{operation="WRITE",resource_type="TOPIC"}': "0+14x60"
    },
}
"""For each alert a history at whose end it does not fire."""


@pytest.fixture(scope="module")
def promtool() -> str:
    found = os.environ.get("DUALWRITE_TEST_PROMTOOL") or shutil.which("promtool")
    if found is None:
        reason = "no promtool: it is in Debian's package prometheus"
        if "promtool" in os.environ.get("DUALWRITE_REQUIRE", "").split():
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def test_every_alert_has_a_history_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert [rule["alert"] for rule in alerts()] == list(FIRING) == list(QUIET)


def test_prometheus_accepts_the_configuration_and_the_rules(promtool: str) -> None:
    checked = subprocess.run(
        [promtool, "check", "config", str(HERE / "prometheus.yml")], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(alerts())} rules found" in checked.stdout


def firing(promtool: str, scratch: Path, alert: str, history: Mapping[str, str]) -> bool:
    """True if ``alert`` fires at the end of ``history``."""
    steps = int(next(iter(history.values())).rpartition("x")[2])
    minutes = steps // 4
    case = {
        "interval": "15s",
        "input_series": [{"series": series, "values": values} for series, values in history.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"value": 1}],
            }
        ],
    }
    path = scratch / f"{alert}.json"  # JSON is YAML
    path.write_text(
        json.dumps({"rule_files": [str(HERE / "alerts.yml")], "evaluation_interval": "15s", "tests": [case]})
    )
    tested = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    answer = tested.stdout + tested.stderr
    assert tested.returncode == 0 or "got:" in answer, answer
    return tested.returncode == 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_when_it_should_and_not_otherwise(promtool: str, tmp_path: Path, alert: str) -> None:
    assert firing(promtool, tmp_path, alert, FIRING[alert])
    assert not firing(promtool, tmp_path, alert, QUIET[alert])
