"""The digital twin of a running server: limits, states, ranges and exported metrics; a real server process."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import metrics_server
import numpy as np
import pytest
from capacity_validate import evidence, watch
from capacity_validate.benchmark_results.metrics_scrape import run_of_metrics
from capacity_validate.comparison import MetricRow
from capacity_validate.evidence import fetch_text
from capacity_validate.scrape_history import (
    MAX_SCRAPES,
    extend_history,
    read_scrapes,
    read_state,
    split_history,
    write_state,
)
from capacity_validate.watch_limits import find_corrections, in_flight
from capacity_validate.watch_metrics import (
    METRICS,
    MetricsServer,
    alert_rules,
    grafana_dashboard,
    prometheus_text,
)
from capacity_validate.watch_report import WatchReport, status_line
from capacity_validate.watching import Watcher
from long_forms import mostly_slow

from capacity.base.errors import CapacityError, InvalidInput, MalformedFile
from capacity.deployment import Pool, build
from capacity.pool.resolve import resolve
from capacity.report.tables import render
from capacity.workload import parse_slos

SERVER = Path(metrics_server.__file__)


@contextlib.contextmanager
def server_process(folder: Path, **settings: Any) -> Iterator[str]:
    """Run a simulated server in another process; yield its address."""
    path = folder / "settings.json"
    path.write_text(json.dumps({"rate": 4, "end_rate": 6, "interval": 60, "factor": 1.1} | settings))
    process = subprocess.Popen([sys.executable, SERVER, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def watched(folder: Path, **settings: Any) -> WatchReport:
    with server_process(folder, **settings) as address:
        watcher = Watcher(source=address, slos=(), model=None, options={"gpu": "h100"})
        for _ in range(settings["seconds"] // 60 + 1):
            watcher.scrape(None)
        report = watcher.report()
    assert report is not None
    return report


@pytest.mark.ci
def test_slower_server_raises_an_alarm_and_growth_is_found(tmp_path: Path) -> None:
    report = watched(tmp_path, seconds=2400, slow_from_s=1800, slow_factor=1.2)
    assert not report.healthy
    tpot = next(change for change in report.changes if change.metric == "mean_tpot_ms")
    assert abs(tpot.since_s - metrics_server.START_S - 1800) <= 120
    assert tpot.factor == pytest.approx(1.2, rel=0.15)
    assert "ALARM" in status_line(report)
    assert re.search(r"^capacity_watch_alarm{.*} 1.0$", prometheus_text(report), re.MULTILINE)
    assert "ALARM" in render(report, "html")


@pytest.mark.ci
@pytest.mark.parametrize("seed", mostly_slow(range(3), [0]))
def test_growing_load_alone_raises_no_alarm(tmp_path: Path, seed: int) -> None:
    report = watched(tmp_path, seconds=2400, seed=seed, end_rate=8)
    assert report.healthy
    assert report.growth is not None
    slope = report.growth.per_hour
    assert slope.low is not None
    assert slope.high is not None
    assert slope.low < 6.0 < slope.high
    assert all(row.inside for window in report.windows[:4] for row in window.metrics)


def test_correction_is_that_of_the_mean_and_decreases_with_the_distance(
    texts: list[str], tmp_path: Path
) -> None:
    """SGLang exports no percentile of TPOT. The mean is measured as twice the prediction."""
    (window,) = split_history((scrapes := scrapes_of(texts, tmp_path))[:1] + scrapes[-1:])
    run = replace(run_of_metrics(window.metrics), request_rate=window.offered_per_s)
    mean = MetricRow(name="mean_tpot_ms", measured=20.0, predicted=10.0, low=8.0, high=12.5)
    (slo,) = parse_slos("tpot:p95:40ms")
    present = resolve("llama-3.1-8b", build(Pool, {"gpu": "h100"}))
    (found,) = find_corrections([slo], present, [(run, [mean])])
    here = in_flight(run)
    factors = [found.factor(here * times) for times in (1.0, 2.0, 100.0)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(2.0, rel=0.15)
    assert factors[-1] == pytest.approx(1.0)
    left = [found.remaining_fraction(here * times) for times in (1.0, 2.0, 100.0)]
    assert left == sorted(left)
    noise = (0.0539 / 0.1357) ** 2  # of repeated, resampled runs, and of the interval from 8 to 12.5
    assert left[0] == pytest.approx((noise / (1 + noise)) ** 0.5, rel=0.01)
    assert left[-1] == pytest.approx(1.0)
    (none,) = find_corrections([slo], present, [])
    assert (none.factor(here), none.remaining_fraction(here)) == (1.0, 1.0)


@pytest.mark.ci
def test_release_is_that_of_the_server_or_is_said_to_be_assumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seconds": 300, "rate": 4, "end_rate": 4}
    stated = watched(tmp_path, **settings, version="0.32.0")
    assert stated.engine == "vllm@0.32"
    assert "The server states release 0.32.0, predicted as vllm@0.32." in stated.notes
    silent = watched(tmp_path, **settings)
    assert any(f"{silent.engine} is assumed" in note for note in silent.notes)
    assert "is assumed" in render(silent, "table")


def test_scrapes_with_and_without_a_release_are_of_one_server(tmp_path: Path) -> None:
    with server_process(tmp_path, seconds=300, version="0.31.1") as address:
        scrape, later = (read_scrapes(address)[0] for _ in range(2))
    assert later.labels["release"] == {"version": "0.31.1"}
    history = extend_history((), [replace(scrape, labels={}), later])
    write_state(tmp_path / "state.json", history)
    (window,) = split_history(read_state(tmp_path / "state.json"))
    runs = tuple(run_of_metrics(each) for each in (window.metrics, replace(window.metrics, labels={})))
    for order in (runs, runs[::-1]):
        server = evidence.Evidence(sources=(address,), runs=order).server
        assert server is not None
        assert server.settings["engine"] == "vllm@0.31.1"
    other = run_of_metrics(replace(window.metrics, labels={"release": {"version": "0.32.0"}}))
    with pytest.raises(InvalidInput, match=r"engine is vllm@0\.31\.1 in .* and vllm@0\.32\.0"):
        _ = evidence.Evidence(sources=(address,), runs=(runs[0], other)).server


@pytest.fixture(scope="module")
def texts() -> list[str]:
    day = metrics_server.serve_day({"rate": 4, "end_rate": 4, "seconds": 300})
    return [metrics_server.metrics_text(day, 60.0 * i) for i in range(6)]


def scrapes_of(texts: list[str], folder: Path) -> list[Any]:
    path, found = folder / "metrics.txt", []
    for text in texts:
        path.write_text(text)
        found += read_scrapes(str(path))
    return found


@pytest.mark.ci
def test_limits_of_a_server_slower_than_its_profile_start_from_its_measurements(tmp_path: Path) -> None:
    """The card of the simulated server takes 3 times as long as the profile of its GPU predicts for each step."""
    slow = {"rate": 4, "end_rate": 4, "seconds": 300, "factor": 3.0}
    texts = [metrics_server.metrics_text(metrics_server.serve_day(slow), 60.0 * i) for i in range(6)]
    slos = parse_slos("ttft:p95:2s tpot:p95:100ms")
    history = extend_history((), scrapes_of(texts, tmp_path))
    report = Watcher(
        source="metrics.txt", slos=slos, model=None, options={"gpu": "h100"}, history=history
    ).report()
    assert report is not None
    for level in report.levels:
        low, high = level.predicted_s.low, level.predicted_s.high
        assert low is not None
        assert high is not None
        assert level.measured_s is not None
        assert low < level.measured_s < high
    now, _ = report.scenarios
    rates = [now.highest_rate_per_s.low, now.highest_rate_per_s.high]
    met = []
    for rate in rates:  # the limit is in the interval
        day = metrics_server.serve_day({**slow, "rate": rate, "end_rate": rate})
        tpot_s = (day.finish_s - day.first_s) / np.maximum(day.output - 1, 1)
        met.append(np.percentile(tpot_s, 95) <= 0.1)
    assert met == [True, False]
    assert any("counts as a guess" in note for note in report.notes)
    assert any("is an extrapolation" in note for note in report.notes)


@pytest.mark.ci
def test_predictions_follow_a_server_faster_than_its_datasheet(tmp_path: Path) -> None:
    report = watched(tmp_path, seconds=300, rate=4, end_rate=4, factor=1 / 1.3)
    rows = {row.name: row for row in report.windows[-1].metrics}
    for name in ("mean_ttft_ms", "mean_tpot_ms"):
        assert rows[name].predicted == pytest.approx(rows[name].measured, rel=0.03)
    assert any("The measured server is faster than the datasheet" in note for note in report.notes)


@pytest.fixture(scope="module")
def reported(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> WatchReport:
    history = extend_history((), scrapes_of(texts, tmp_path_factory.mktemp("scrapes")))
    watcher = Watcher(
        source="metrics.txt",
        slos=parse_slos("ttft:p95:1s tpot:p95:40ms"),
        model=None,
        options={"gpu": "h100"},
        changed=("max-num-seqs=8",),
        history=history,
    )
    report = watcher.report()
    assert report is not None
    return report


@pytest.mark.ci
def test_limits_of_the_server_and_of_one_more_replica(reported: WatchReport) -> None:
    now, two, fewer = reported.scenarios
    assert 1.6 < two.highest_rate_per_s.value / now.highest_rate_per_s.value < 2.4
    assert fewer.highest_rate_per_s.value < 0.7 * now.highest_rate_per_s.value
    assert fewer.highest_concurrency.value < 40
    for scenario in reported.scenarios:
        low, high = scenario.highest_rate_per_s.low, scenario.highest_rate_per_s.high
        assert low is not None
        assert high is not None
        assert low <= scenario.safe_rate_per_s < high
        # both are found to one step of the search, which is coarse only where the measured load leaves little error
        assert low < scenario.safe_rate_per_s or (scenario is fewer and high < 1.1 * low)
        concurrency = scenario.highest_concurrency
        inside = (concurrency.low or 0.0) < scenario.safe_concurrency < (concurrency.high or 0.0)
        assert inside or scenario is fewer  # 8 requests at most, at any speed
    assert all(0 < (level.headroom.low or 0) < level.headroom.value < 1 for level in reported.levels)


def test_state_survives_a_restart_and_joins_old_windows(texts: list[str], tmp_path: Path) -> None:
    history = extend_history((), scrapes_of(texts, tmp_path))
    write_state(tmp_path / "state.json", history)
    assert read_state(tmp_path / "state.json") == history
    assert read_state(tmp_path / "none.json") == ()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    windows = split_history(history)
    assert len(windows) == 5
    assert [each.seconds for each in split_history(history, 100.0)] == [120.0, 120.0]
    assert sum(each.metrics.served for each in windows) == history[-1].served - history[0].served
    (joined,) = split_history((history[0], history[-1]))
    assert joined.metrics.served == history[-1].served - history[0].served
    assert read_scrapes(str(tmp_path / "state.json")) == history


def test_history_of_a_week_keeps_old_scrapes_evenly_and_all_of_the_last_hours(
    texts: list[str], tmp_path: Path
) -> None:
    (scrape,) = scrapes_of(texts[:1], tmp_path)
    times = [metrics_server.START_S + 300.0 * i for i in range(7 * 24 * 12)]
    history: tuple[Any, ...] = ()
    for at in times:
        history = extend_history(history, [replace(scrape, scraped_s=at)])
    kept = [each.scraped_s for each in history]
    assert len(kept) == MAX_SCRAPES
    assert (kept[0], kept[-1]) == (times[0], times[-1])
    gaps = np.diff(kept)
    assert gaps.max() < 3 * 3600
    assert set(gaps[-MAX_SCRAPES // 2 + 2 :]) == {300.0}


def prometheus_range(texts: list[str]) -> dict[str, Any]:
    """Return the scrapes as the JSON of Prometheus' query_range."""
    from capacity_validate.server_metrics import _LABEL, _SAMPLE

    series: dict[str, dict[str, Any]] = {}
    for text in texts:
        for line in text.splitlines():
            found = _SAMPLE.fullmatch(line)
            assert found is not None
            engine, name, labels, value, stamp = found.groups()
            key = line.rsplit(" ", 2)[0]
            metric = {"__name__": f"{engine}:{name}", **dict(_LABEL.findall(labels)), "instance": "a:8000"}
            series.setdefault(key, {"metric": metric, "values": []})["values"].append(
                [int(stamp) / 1e3, value]
            )
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series.values())}}


def test_prometheus_range_gives_the_same_windows_as_scrapes(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "range.json"
    path.write_text(json.dumps(prometheus_range(texts)))
    found = [replace(each, path="") for each in read_scrapes(str(path))]
    assert found == [replace(each, path="") for each in scrapes_of(texts, tmp_path)]
    two = prometheus_range(texts)
    two["data"]["result"][0]["metric"]["instance"] = "b:8000"
    path.write_text(json.dumps(two))
    with pytest.raises(MalformedFile, match="several servers"):
        read_scrapes(str(path))


@pytest.mark.parametrize(
    "text", ["{}", '{"data": {"resultType": "matrix", "result": [{"metric": 3}]}}', "x", "[1]"]
)
def test_other_content_is_one_line(text: str, tmp_path: Path) -> None:
    for name in ("range.json", "state.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(MalformedFile) as refused:
        read_scrapes(str(tmp_path / "range.json"))
    assert "\n" not in str(refused.value)
    with pytest.raises(MalformedFile):
        read_state(tmp_path / "state.json")


def test_damaged_state_is_refused(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, scrapes_of(texts, tmp_path))
    document = json.loads(path.read_text())
    document["scrapes"][0]["histograms"]["request_prompt_tokens"]["counts"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(MalformedFile, match="damaged"):
        read_state(path)


def test_bad_settings_are_refused_in_one_line(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(texts[-1])
    for wrong, words in (
        ({"slo": "ttft:500"}, "must be one of p50"),
        ({"changed": ["nonesuch=3"]}, "--try"),
        ({}, "0 of 4 windows"),
    ):
        with pytest.raises(InvalidInput, match=words):
            watch(str(path), gpu="h100", **wrong)  # type: ignore[arg-type]


def test_server_that_never_ends_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte at a time stays below each socket timeout, so the whole answer has a limit, too."""
    monkeypatch.setattr(evidence, "FETCH_SECONDS", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            for _ in range(100):
                connection.sendall(b"#")
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(CapacityError, match="not complete"):
        fetch_text(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")
    assert time.monotonic() - begun < 5
    listener.close()


def exported_names(text: str) -> set[str]:
    return set(re.findall(r"\bcapacity_watch_\w+", text))


@pytest.mark.ci
def test_metrics_contain_the_report_with_its_intervals(reported: WatchReport) -> None:
    text = prometheus_text(reported)
    samples = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line[0] != "#"
    }
    labels = f'model="{reported.model}",gpu="{reported.gpu}",engine="{reported.engine}"'
    level = reported.levels[0]
    for bound in ("value", "low", "high"):
        name = f'capacity_watch_slo_headroom_ratio{{{labels},slo="ttft:p95:1s",bound="{bound}"}}'
        assert samples[name] == getattr(level.headroom, bound)
    for row in reported.windows[-1].metrics:
        statistic, metric, _ = row.name.split("_")
        observed = f'capacity_watch_observed_{metric}_seconds{{{labels},statistic="{statistic}"}}'
        assert samples[observed] == pytest.approx(row.measured / 1e3)
    assert {row.name for row in reported.windows[-1].metrics} == {
        f"{statistic}_{metric}_ms" for statistic in ("mean", "p95") for metric in ("ttft", "tpot")
    }
    typed = re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)
    assert set(typed) == {name.partition("{")[0] for name in samples}
    missing = {f"capacity_watch_{name}" for name in METRICS} - set(typed)
    assert missing <= {"capacity_watch_hours_to_saturation"}  # without significant growth


def test_limit_with_unknown_launch_settings_has_a_note(reported: WatchReport) -> None:
    assert any("--max-num-seqs, the default" in note for note in reported.notes)


def test_too_short_prometheus_range_asks_for_a_shorter_step() -> None:
    source = "http://127.0.0.1:1/api/v1/query_range"
    watcher = Watcher(source=source, slos=(), model=None, options={"gpu": "h100"})
    assert "add start, end and a shorter step to the address" in watcher.missing


def test_alert_rules_and_dashboard_use_exported_metrics_only() -> None:
    import yaml

    exported = {f"capacity_watch_{name}" for name in METRICS}
    rules = [rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]]
    dashboard = json.loads(grafana_dashboard())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert exported_names(" ".join(rule["expr"] for rule in rules)) <= exported
    assert exported_names(" ".join(shown)) == exported
    in_ms = {expr.partition("{")[0] for expr in shown if expr.endswith(" * 1000")}
    assert in_ms == {"capacity_watch_window_end_timestamp_seconds"}  # Grafana shows times from ms
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in dashboard["panels"]})


def test_metrics_are_served_on_the_loopback_interface() -> None:
    server = MetricsServer("0")
    server.text = "capacity_watch_alarm 0.0\n"
    assert server.url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read().decode() == server.text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(server.url.removesuffix("metrics"), timeout=60)
    port = server.url.split(":")[2].removesuffix("/metrics")
    for address, words in ((port, "in use"), ("x", "0.0.0.0:9105"), ("1:2:99999", "cannot listen")):
        with pytest.raises(InvalidInput, match=words):
            MetricsServer(address)


@pytest.mark.ci
def test_command_writes_metrics_rules_dashboard_and_report_from_a_state(
    texts: list[str], tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    write_state(state, extend_history((), scrapes_of(texts, tmp_path)))
    names = {"metrics": "m.prom", "alerts": "a.yml", "dashboard": "d.json", "report": "r.html"}
    flags = [part for kind, name in names.items() for part in ("--output", f"{kind}={tmp_path / name}")]
    command = [sys.executable, "-m", "capacity", "watch", str(state), "--gpu", "h100", *flags]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "of 20 measured values lie within the 90 % interval" in found.stdout
    written = {kind: (tmp_path / name).read_text() for kind, name in names.items()}
    assert exported_names(written["metrics"]) >= {
        "capacity_watch_alarm",
        "capacity_watch_predicted_ttft_seconds",
    }
    assert written["alerts"] == alert_rules()
    assert written["dashboard"] == grafana_dashboard()
    for title in ("mean TTFT", "mean TPOT", "p95 TTFT", "p95 TPOT"):
        assert f"{title}, ms: measured and predicted" in written["report"]
    found = subprocess.run([*command, "--window", "100s"], capture_output=True, text=True, check=False)
    assert "2 of 4 windows" in found.stdout


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool and prometheus")
def test_prometheus_accepts_rules_and_scrapes_metrics(reported: WatchReport, tmp_path: Path) -> None:
    rules, settings = tmp_path / "rules.yml", tmp_path / "prometheus.yml"
    rules.write_text(alert_rules())
    found = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    text = prometheus_text(reported)
    lint = ["promtool", "check", "metrics"]
    found = subprocess.run(lint, input=text, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    server = MetricsServer("0")
    server.text = re.sub(r"(?m)^(capacity_watch_alarm{.*}) 0.0$", r"\1 1.0", text)
    target = server.url.removeprefix("http://").removesuffix("/metrics")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: watch, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={settings}", f"--web.listen-address={address}"]
    process = subprocess.Popen(
        [*command, f"--storage.tsdb.path={tmp_path / 'data'}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        query = f"http://{address}/api/v1/query?query=ALERTS"
        names = {name.partition("{")[0] for name in text.splitlines() if name[0] != "#"}
        alerts, series = ask_until(query, 1), ask_until(query.replace("ALERTS", '{job="watch"}'), len(names))
        assert names <= {each["metric"]["__name__"] for each in series}
        firing = {each["metric"]["alertname"] for each in alerts if each["metric"]["alertstate"] == "firing"}
        assert "CapacityServerChanged" in firing
    finally:
        process.kill()
        process.wait()


def ask_until(query: str, number: int) -> list[dict[str, Any]]:
    """Return the result of a Prometheus query once it has this many series."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(query, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            if len(found) >= number:
                return found
        time.sleep(0.3)
    raise AssertionError(f"{query} has no {number} series")
