"""The Prometheus metrics of `capacity watch`: text format, HTTP endpoint, alert rules and Grafana dashboard.

Sources: prometheus.io/docs/instrumenting/exposition_formats; the types of Grafana's classic dashboards in
@grafana/schema 11.6.0 and 13.2.3, with which the dashboard was checked (2026-11-29).
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from capacity.answers.records import Quantity
from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput
from capacity_validate.watch_report import WatchReport

PREFIX = "capacity_watch_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """A gauge with its help text and its unit in Grafana."""

    help: str
    unit: str


METRICS = read_rows(Path(__file__).with_name("watch_metrics.toml"), Metric, named=False)


def prometheus_text(report: WatchReport) -> str:
    """Return the report in Prometheus' text format.

    A value with an interval becomes three samples with the label `bound`: value, and low and high of the 90 % interval.
    Metrics without a value are left out.
    """
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for name, labels, value in _samples(report):
        labels = {"model": report.model, "gpu": report.gpu, "engine": report.engine} | labels
        if isinstance(value, Quantity):
            ends = {bound: getattr(value, bound) for bound in ("value", "low", "high")}
            numbers = [(labels | {"bound": bound}, end) for bound, end in ends.items()]
        else:
            numbers = [(labels, value)]
        for words, number in numbers:
            if number is not None:
                pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in words.items())
                samples[name].append(f"{PREFIX}{name}{{{pairs}}} {number}\n")
    return "".join(
        f"# HELP {PREFIX}{name} {METRICS[name].help}\n# TYPE {PREFIX}{name} gauge\n{''.join(lines)}"
        for name, lines in samples.items()
        if lines
    )


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _samples(report: WatchReport) -> Iterator[tuple[str, dict[str, str], Quantity | float | None]]:
    yield "alarm", {}, float(not report.healthy)
    yield "request_rate", {}, report.request_rate_per_s
    yield "window_end_timestamp_seconds", {}, report.windows[-1].end_s
    if report.growth is not None:
        yield "growth_per_hour", {}, report.growth.per_hour
        yield "forecast_request_rate", {}, report.growth.forecast_per_s
    yield "hours_to_saturation", {}, report.hours_to_saturation
    for level in report.levels:
        yield "slo_headroom_ratio", {"slo": level.slo}, level.headroom
    for scenario in report.scenarios:
        labels = {"deployment": scenario.name}
        yield "highest_request_rate", labels, scenario.highest_rate_per_s
        yield "safe_request_rate", labels, scenario.safe_rate_per_s
        yield "highest_concurrency", labels, scenario.highest_concurrency
        yield "safe_concurrency", labels, scenario.safe_concurrency
    for row in report.windows[-1].metrics:
        statistic, metric, _ = row.name.split("_")
        value, low, high = (None if end is None else end / 1e3 for end in (row.predicted, row.low, row.high))
        yield f"observed_{metric}_seconds", {"statistic": statistic}, row.measured / 1e3
        if value is not None:
            predicted = Quantity(value=value, low=low, high=high)
            yield f"predicted_{metric}_seconds", {"statistic": statistic}, predicted


class MetricsServer:
    """An HTTP server that returns `text` at /metrics, in a thread that ends with the process."""

    def __init__(self, address: str) -> None:
        """Listen at HOST:PORT, or at PORT of the loopback interface. Raises InvalidInput."""
        self.text = ""
        host, _, port = address.rpartition(":")
        try:
            self._server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), self._handler())
        except (OSError, OverflowError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "write it as 9105 or 0.0.0.0:9105"
            raise InvalidInput(f"cannot listen at {address!r}: {reason}") from None
        threading.Thread(target=self._server.serve_forever, daemon=True, name="capacity-metrics").start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Answers(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = server.text.encode() if found else b"the metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        return Answers


def alert_rules() -> str:
    """Return the alert rules, as a Prometheus rule file."""
    return _read("watch_alerts.yml")


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def grafana_dashboard() -> str:
    """Return a Grafana dashboard as JSON, with one panel per metric; observed and predicted latencies share a panel."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    for name in (each for each in METRICS if not each.startswith("predicted_")):
        in_ms = " * 1000" if METRICS[name].unit == "dateTimeAsIso" else ""  # Grafana's times are in ms
        queries = [name, *([name.replace("observed", "predicted")] if name.startswith("observed_") else [])]
        legend = "{{slo}}{{deployment}}{{statistic}} {{bound}}"
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "stat" if METRICS[name].unit in ("bool", "dateTimeAsIso") else "timeseries",
                "title": METRICS[name].help,
                "datasource": source,
                "gridPos": {"x": len(panels) % 2 * 12, "y": len(panels) // 2 * 8, "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": METRICS[name].unit}, "overrides": []},
                "targets": [
                    {
                        "refId": "AB"[place],
                        "datasource": source,
                        "expr": f'{PREFIX}{query}{{instance="$instance"}}{in_ms}',
                        "legendFormat": f"{query.partition('_')[0]} {legend}" if queries[1:] else legend,
                    }
                    for place, query in enumerate(queries)
                ],
            }
        )
    dashboard = json.loads(_read("watch_dashboard.json")) | {"panels": panels}
    return json.dumps(dashboard, indent=2) + "\n"
