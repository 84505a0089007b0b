"""Read the files of one server: the kind of each file, the server's settings, and its runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from capacity.base.errors import CapacityError
from capacity.model import load_model, model_names
from capacity.report.views.units import TEXT
from capacity.report.views.view import Column, Table, View
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.evidence import Evidence, read_evidence
from capacity_validate.server_log import ServerLog
from capacity_validate.server_settings import served_model

EXPECTED = ("engine", "tensor parallel size", "quantization", "KV cache dtype", "KV tokens")
MISSING = "in no file"
FIGURES = (("mean TTFT, ms", "ttft"), ("mean TPOT, ms", "tpot"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """One file: its path, its kind, and what was read from it or why it cannot be used (`error`)."""

    path: str
    kind: str
    content: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """One setting of the server as text, and the file that states it; `MISSING` if none does."""

    name: str
    value: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The content of a server's files.

    `model` is a preset's name, or None if no file names a known model. `fields` are the settings in the files as fields
    of `Pool`. Values on which the files contradict each other are left out of both.
    """

    files: tuple[FileContent, ...]
    settings: tuple[ServerSetting, ...]
    runs: tuple[MeasuredRun, ...]
    model: str | None
    fields: dict[str, Any]
    kernels: bool

    @property
    def readable(self) -> tuple[str, ...]:
        """Return the paths of the files that can be used."""
        return tuple(file.path for file in self.files if not file.error)


def read_server_files(paths: Sequence[str]) -> ServerFiles:
    """Read files of one server. Unreadable or contradictory files raise no error: the answer contains the reasons."""
    rejected: dict[str, str] = {}
    evidence = read_evidence(paths, rejected=rejected)
    try:
        server = evidence.server
    except CapacityError:  # `compare` and `calibrate` raise it
        server = None
    model = _known_model(evidence, server)
    return ServerFiles(
        files=tuple(
            FileContent(path=path, kind=evidence.kinds.get(path, "unknown"), error=rejected[path])
            if path in rejected
            else FileContent(path=path, kind=evidence.kinds[path], content=_content(evidence, path))
            for path in paths
        ),
        settings=tuple(_settings(evidence, server, model)),
        runs=evidence.runs,
        model=model,
        fields={} if server is None else server.settings,
        kernels=bool(evidence.measurements),
    )


def _known_model(evidence: Evidence, server: ServerLog | None) -> str | None:
    """Return the preset of the model that the files name; None if they name none, an unknown or several models."""
    try:
        name = load_model(served_model(None, evidence.runs, server)).name
    except CapacityError:
        return None
    return name if name in model_names() else None


def _content(evidence: Evidence, path: str) -> str:
    runs = [run for run in evidence.runs if run.path == path]
    if runs:
        return f"{len(runs)} run{'s' * (len(runs) > 1)}, {sum(run.completed for run in runs):,} requests"
    if evidence.log is not None and evidence.log.path == path:
        return f"{len(evidence.log.rows())} settings and sizes"
    return "earlier scrape of the same server" if path in str(evidence.runs) else ""


def _settings(evidence: Evidence, server: ServerLog | None, model: str | None) -> Iterator[ServerSetting]:
    """Yield the model, settings and logged sizes, each with its file, then expected settings that no file states."""
    logs = [log for log in (evidence.log, *(run.server for run in evidence.runs)) if log is not None]
    origins: dict[str, str] = {}
    for log in logs:
        for name, _ in log.rows():
            origins.setdefault(name, log.path)
    if model is not None:
        named = [log.path for log in logs if log.launch.models] + [r.path for r in evidence.runs if r.model]
        yield ServerSetting(name="model", value=model, path=named[0])
    found = dict(server.rows() if server is not None else ())
    for name, value in found.items():
        shown = "none" if value == "None" else value
        yield ServerSetting(name=name.replace("kv ", "KV "), value=shown, path=origins[name])
    for name in (*(() if model else ("model",)), "GPU", *EXPECTED):
        if name.replace("KV ", "kv ") not in found:
            yield ServerSetting(name=name, value="", path=MISSING)


def server_files_view(answer: ServerFiles) -> View:
    """Return the view of a server's files: the files, the settings with their origin, and load and metrics of each
    run."""
    files = [
        Column("file", "path"),
        Column("kind", "kind"),
        Column("read", lambda file: file.content or "nothing"),
    ]
    settings = [Column("setting", "name"), Column("value", "value"), Column("from", "path")]
    runs = [
        *(
            Column("run", "path"),
            Column("tool", "tool"),
            Column("requests", lambda run: f"{run.completed:,}", TEXT),
        ),
        *(Column("load", _load_text), Column("input + output tokens", _lengths_text)),
        *(Column(title, partial(_mean_text, metric), TEXT) for title, metric in FIGURES),
        Column("output tokens/s", lambda run: _number_text(run.output_throughput), TEXT),
    ]
    return View(
        "",
        [
            *(f"[red]{file.path}: {file.error}" for file in answer.files if file.error),
            Table("Files", answer.files, files, name="server_files", wrap=True),
            Table("Runs in the files", answer.runs, runs, name="server_runs", wrap=True),
            Table("Settings in the files", answer.settings, settings, name="server_settings"),
        ],
    )


def _load_text(run: MeasuredRun) -> str:
    rate = None if run.request_rate in (None, float("inf")) else f"{run.request_rate:.3g} requests/s"
    limit = None if run.concurrency is None else f"concurrency {run.concurrency:,}"
    return ", ".join(filter(None, (rate, limit))) or ("all at once" if run.request_rate else "unknown")


def _lengths_text(run: MeasuredRun) -> str:
    means = [run.mean_prompt_tokens, run.mean_output_tokens]
    if run.requests is not None:
        means = [float(np.mean(n)) for n in (run.requests.prompt_tokens, run.requests.output_tokens)]
    return " + ".join("?" if mean is None else f"{mean:,.0f}" for mean in means)


def _mean_text(metric: str, run: MeasuredRun) -> str:
    return _number_text(run.latencies_ms.get(metric, {}).get("mean"))


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
