"""Served measurements beside their predictions, with what each hangs on: what intervals are made and judged by.

    python benchmarks/interval_evidence.py TABLE.csv

One row a figure: TTFT, TPOT or E2E of a run (a mean or a percentile), where and by whom it was measured, what is
predicted, and how much each class of seconds does to it (`capacity/answers/sensitivity.py`). E2E of a closed loop is
its throughput, by Little's law; saturated throughputs are entered as the time that a request takes of it.

Sources are the reference library's (`served_data.py`, `served_open.py`, TensorRT-LLM's performance page; gpustack's lab
publishes means of conversations whose longest decide its bursts, and is not used). Closed loops are predicted three
times: with all that is known of launch and client said, without the client's latency, and with nothing said.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import served_rows
from served_data import ServedRow, read_rows, shared_folder
from served_errors import scored
from served_open import OpenRun, apex_runs, inference_sim_runs, iog_runs

from capacity.answers.deployment_run import verdict_on
from capacity.answers.sensitivity import ObservedLoad, Sensitivities, sensitivities
from capacity.base.errors import CapacityError
from capacity.deployment import Pool, Service
from capacity.deployment.client_latency import USUAL_S, client_latency
from capacity.deployment.command_words import LAUNCH_DEFAULTS
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.load_means import whole_run_means
from capacity.step.closed_form import closed_loop_times
from capacity.step.time_classes import EFFECTS

ENGINES = served_rows.ENGINES
ALL, NO_CLIENT, RELEASE, NOTHING = "all", "no client", "release", "nothing"
OTHER_LAB = "other lab"  # launch and release known, the client not
PUBLISHED = (
    "published, launch line"  # by third parties: with their launch line, their release alone, or neither
)
PUBLISHED_RELEASE, PUBLISHED_NOTHING = "published, release", "published, nothing"
THIRD_PARTIES = (PUBLISHED, PUBLISHED_RELEASE, PUBLISHED_NOTHING)
NO_LAUNCH = " ".join(LAUNCH_DEFAULTS)  # the settings that nobody stated, as `Figure.unsaid` has them
SETTINGS = ("engine_version", "max_num_batched_tokens", "max_num_seqs", "kv_cache_dtype", "scheduling")
SCHEDULING = (
    "prompts_per_step",
    "batch_wait_steps",
    "batch_wait_tokens_fraction",
    "asynchronous",
    "async_scheduling",
)
NOT_LEFT = ("enforce_eager",)  # no setting that an interval names as left to the default
QUESTION_FIELDS = (  # what everyone states who asks for a deployment, without its launch settings
    "gpu",
    "engine",
    "quantization",
    "tensor_parallel_size",
    "data_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "max_model_len",
    "language_model_only",
)
UNSAID_EVERY = 3
ROWS_OF_A_GROUP = 24  # of those with hundreds of rows, evenly picked: a group counts once


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure. Times in seconds; `sensitivity` by class of seconds, and `queue_share` of a TTFT.

    `source` is whose it is: campaign, client and machine, what is left out together; `group` a deployment in it, `run`
    one run of it.
    `said`: what the prediction knows of client and launch: everything but `unsaid` (names of settings) and, except for
    "all", the client. `load_fraction` of open loops, `ttft_share` of an E2E. `transferred`, `error_factor`: as
    in `PredictionContext`.
    """

    source: str
    group: str
    run: str
    gpu: str
    engine: str
    version: str
    model: str
    is_moe: bool
    metric: str  # ttft, tpot, e2e
    statistic: str  # mean, median, p99, ...
    said: str  # all, no client, release, nothing, published ...; or "no" and a launch setting
    measured_s: float
    predicted_s: float
    queue_share: float
    load_fraction: float | None
    sensitivity: Mapping[str, float]
    ttft_share: float = 0.0
    unsaid: str = ""
    transferred: bool = False
    error_factor: float = 1.0

    @property
    def log_error(self) -> float:
        """The logarithm of measured over predicted."""
        return math.log(self.measured_s / self.predicted_s)


def _figures(
    sens: Sensitivities, pairs: Iterable[tuple[str, str, float, float]], *, ttft_share: float, **fields: Any
) -> Iterator[Figure]:
    """`pairs`: metric, statistic, measured, predicted. `ttft_share`: of E2E."""
    for metric, statistic, measured, predicted in pairs:
        own = getattr(sens, metric)
        if own is None or not (measured > 0 and predicted > 0):
            continue
        yield Figure(
            metric=metric,
            statistic=statistic,
            measured_s=measured,
            predicted_s=predicted,
            queue_share=sens.queue_share if metric == "ttft" else 0.0,
            ttft_share=ttft_share if metric == "e2e" else 0.0,
            sensitivity=own,
            **fields,
        )


def without_launch(fields: Mapping[str, Any], *, release: bool) -> dict[str, Any]:
    """Return the fields of a pool without its launch settings, and without its engine's release unless `release`."""
    kept = {name: value for name, value in fields.items() if name in QUESTION_FIELDS}
    return kept if release else {**kept, "engine": kept["engine"].split("@")[0]}


# closed loops of InferenceX and gap-analysis


def closed_loops(folder: Path) -> Iterator[Figure]:
    """Evenly picked rows of every group."""
    groups: dict[tuple[str, ...], list[ServedRow]] = {}
    for row in read_rows(folder):
        if scored(row):
            groups.setdefault(row.group, []).append(row)
    for rows in groups.values():
        rows.sort(key=lambda r: (r.tensor_parallel, r.input_len, r.output_len, r.concurrency, r.ttft_s))
        picked = np.unique(np.linspace(0, len(rows) - 1, ROWS_OF_A_GROUP).round().astype(int))
        for place, index in enumerate(picked):
            yield from _closed_loop(rows[index])
            if place % UNSAID_EVERY == 0:
                yield from _without_each(rows[index])


def _without_each(row: ServedRow) -> Iterator[Figure]:
    """The row with one launch setting at a time left to the default; nothing where its server ran with that."""
    launch = served_rows.launch_settings(row)
    if row.version or "engine" in launch:
        yield from _left_out(row, "engine_version", engine=ENGINES[row.backend])
    for setting in SETTINGS[1:]:
        keys = SCHEDULING if setting == "scheduling" else (setting,)
        if not any(key in launch for key in keys):
            continue
        left = {key: value for key, value in launch.items() if key not in keys}
        yield from _left_out(row, setting, launch=left)


def _left_out(row: ServedRow, setting: str, **server: Any) -> Iterator[Figure]:
    try:
        yield from _seen(row, served_rows.server_of(row, **server), USUAL_S, said=f"no {setting}")
    except CapacityError as error:
        print(f"{' '.join(row.group)} without {setting}: {error}", file=sys.stderr)


def _closed_loop(row: ServedRow) -> Iterator[Figure]:
    client_s = served_rows.client_seconds(row)
    try:
        known = served_rows.server_of(row)
        yield from _seen(row, known, client_s, said=ALL)
        yield from _seen(row, known, USUAL_S, said=NO_CLIENT)
        engine = ENGINES[row.backend]
        launch = served_rows.launch_settings(row)
        left = {key: value for key, value in launch.items() if key in NOT_LEFT}
        yield from _seen(row, served_rows.server_of(row, engine=engine, launch=left), USUAL_S, said=NOTHING)
        if row.version or "engine" in launch:
            server = served_rows.server_of(row, engine=known.resolved.engine.label, launch=left)
            yield from _seen(row, server, USUAL_S, said=RELEASE, unsaid=NO_LAUNCH)
    except CapacityError as error:
        print(f"{' '.join(row.group)}: {error}", file=sys.stderr)


def _seen(
    row: ServedRow, server: served_rows.Server, away_s: float, *, said: str, unsaid: str = ""
) -> Iterator[Figure]:
    means = served_rows.simulated_means(row, server, client_latency_s=away_s)
    output_len = row.output_len * row.length_scale
    e2e_s = means.ttft_s + (output_len - 1) * means.tpot_s
    load = ObservedLoad(
        input_len=row.input_len * row.length_scale,
        output_len=output_len,
        in_flight=server.concurrency,
        ttft_s=means.ttft_s,
        tpot_s=means.tpot_s,
        e2e_s=e2e_s,
        server_s=away_s + _server_s(server.resolved),
        waiting_s=means.waiting_s,
    )
    pairs = (
        ("ttft", "mean", row.ttft_s, means.ttft_s),
        ("tpot", "mean", row.tpot_s, means.tpot_s),
        ("e2e", "mean", row.ttft_s + (output_len - 1) * row.tpot_s, e2e_s),
    )
    yield from _figures(
        sensitivities(server.resolved, load),
        pairs,
        source=source_of(row),
        group=" ".join(row.group),
        run=f"{row.tensor_parallel}x{row.data_parallel} {row.input_len}/{row.output_len} at {row.concurrency}, "
        f"{row.ttft_s:.6g} s",
        gpu=row.gpu,
        engine=ENGINES[row.backend],
        version=row.version,
        model=row.model,
        is_moe=not row.dense,
        said=said,
        unsaid=unsaid,
        load_fraction=None,
        ttft_share=min(means.ttft_s / e2e_s, 1.0),
    )


def source_of(row: ServedRow) -> str:
    """Whose a row is: campaign, engine with its client, GPU."""
    return f"{row.campaign} {row.backend} {row.gpu}"


def _server_s(resolved: ResolvedPool) -> float:
    return resolved.engine.request_latency_s + resolved.engine.response_latency_s


# open loops


def open_loops(folder: Path) -> Iterator[Figure]:
    """Runs with arrivals by the clock: means, medians and 99th percentiles."""
    said = {"apex": 0.0, "iog": client_latency("same-machine").seconds, "inference-sim": USUAL_S}
    for runs in (apex_runs, iog_runs, inference_sim_runs):
        for run in runs(folder):
            yield from _open_loop(run, said[run.source])


def _open_loop(run: OpenRun, client_s: float) -> Iterator[Figure]:
    resolved, workload = run.resolved, run.workload
    whole = whole_run_means(run.result.summary, run.result.records)
    verdict = verdict_on(run.result, [resolved], Service(), workload)
    assert whole is not None
    assert verdict is not None
    load = ObservedLoad(
        input_len=float(workload.prompt_tokens.mean()),
        output_len=float(workload.output_tokens.mean()),
        in_flight=whole.in_flight,
        ttft_s=whole.ttft_s,
        tpot_s=whole.tpot_s,
        e2e_s=whole.e2e_s,
        server_s=client_s + _server_s(resolved),
        waiting_s=whole.waiting_s,
        load_fraction=verdict.load_fraction,
    )
    summary, measured = run.result.summary.to_dict(), run.measured_ms
    pairs = [
        ("ttft", "median" if run.source == "inference-sim" else "mean", run.ttft_s, run.predicted_ttft_s),
        ("tpot", "mean", run.tpot_s, run.predicted_tpot_s),
    ]
    for metric, own in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")):
        for statistic in ("mean", "p90", "p99"):
            known = f"{metric}_{statistic}_ms"
            if known in measured and (metric, statistic) not in {pair[:2] for pair in pairs}:
                pairs.append(
                    (metric, statistic, measured[known] / 1e3, summary[f"{statistic}_{own}_ms"] / 1e3)
                )
    if run.source == "inference-sim":  # its ITL counts tokens anew
        pairs = [pair for pair in pairs if pair[0] != "tpot" or pair[1] == "mean"]
    yield from _figures(
        sensitivities(resolved, load),
        pairs,
        source=f"{run.source} {resolved.engine.name} {resolved.profile.name}",
        group=f"{run.source} {run.model} tp{resolved.pool.tensor_parallel_size}",
        run=f"{run.label}, {run.ttft_s:.6g} s",
        gpu=resolved.profile.name,
        engine=resolved.engine.name,
        version=resolved.engine.label,
        model=run.model,
        is_moe=resolved.model.is_moe,
        said=ALL,
        load_fraction=verdict.load_fraction,
        ttft_share=min(whole.ttft_s / whole.e2e_s, 1.0),
    )


# throughput


PAGE_GPUS = {
    "A100-PCIE-80GB": "a100-pcie-80gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100 80GB HBM3": "h100-sxm-80gb",
    "H200 141GB HBM3": "h200-sxm-141gb",
    "L40S": "l40s-48gb",
}
PAGE_MODELS = {
    "LLaMA v3 70B": "llama-3-70b",
    "LLaMA v3.1 70B": "llama-3.1-70b",
    "LLaMA v3.1 8B": "llama-3.1-8b",
    "LLaMA v3.1 405B": "llama-3.1-405b",
    "Mistral 7B": "mistral-7b",
    "Mixtral 8x7B": "mixtral-8x7b",
    "Mixtral 8x22B": "mixtral-8x22b",
}
MOST_SEQUENCES = 2048


def performance_page(folder: Path) -> Iterator[Figure]:
    """TensorRT-LLM 0.14 at all it can: output tokens a second where requests never lack."""
    import pandas as pd

    table = pd.read_csv(folder / "reference" / "measured" / "trtllm_perf_overview.csv.gz")
    for record in table.to_dict("records"):
        gpu, model = PAGE_GPUS[record["gpu"]], PAGE_MODELS[record["model"]]
        tokens = int(record["input_len"] + record["output_len"])
        pool = Pool(
            gpu=gpu,
            engine="tensorrt-llm",
            tensor_parallel_size=int(record["tp"]),
            quantization="fp8" if record["weight_precision"] == "fp8" else None,
            kv_cache_dtype="fp8" if record["weight_precision"] == "fp8" else "auto",
            max_num_seqs=MOST_SEQUENCES,
            max_model_len=max(tokens, 256),
            max_num_batched_tokens=max(8192, tokens),
        )
        try:
            resolved = resolve(model, pool)
            resolved.memory.require_fit()
        except CapacityError as error:
            print(f"{record['gpu']} {model} tp{record['tp']}: {error}", file=sys.stderr)
            continue
        held = min(resolved.concurrent_requests(tokens), MOST_SEQUENCES)
        if held < 1:
            continue
        yield from _saturated(
            resolved,
            held,
            record,
            source=f"TensorRT-LLM page tensorrt-llm {gpu}",
            group=f"TensorRT-LLM page {gpu} {model} {record['weight_precision']}",
            run=f"{record['tp']} {record['input_len']}/{record['output_len']}",
            engine="tensorrt-llm",
            model=model,
        )


def _saturated(
    resolved: ResolvedPool, held: int, record: Mapping[str, Any], *, engine: str, model: str, **fields: Any
) -> Iterator[Figure]:
    share = math.ceil(held / resolved.independent_ranks)
    times = closed_loop_times(
        resolved.step_model,
        resolved.limits_from(0.0),
        share,
        input_len=round(record["input_len"]),
        output_len=round(record["output_len"]),
        ranks=min(resolved.lockstep_ranks, share),
    )
    predicted = times.requests_per_s * held / share * record["output_len"]
    load = ObservedLoad(
        input_len=record["input_len"],
        output_len=record["output_len"],
        in_flight=held,
        ttft_s=times.ttft_s,
        tpot_s=times.tpot_s,
        e2e_s=times.e2e_s,
        server_s=_server_s(resolved),
    )
    yield from _figures(
        sensitivities(resolved, load),
        [("e2e", "throughput", held / record["value"], held / predicted)],
        gpu=resolved.profile.name,
        engine=engine,
        version=str(record["date_or_version"])[:20],
        model=model,
        is_moe=resolved.model.is_moe,
        said=ALL,
        load_fraction=None,
        ttft_share=0.0,
        **fields,
    )


def all_figures(folder: Path) -> list[Figure]:
    """Everything at hand."""
    sources = (closed_loops, open_loops, performance_page)
    return [figure for source in sources for figure in source(folder)]


def save(figures: Iterable[Figure], path: Path) -> None:
    import pandas as pd

    rows = []
    for figure in figures:
        fields = asdict(figure)
        rows.append({**fields, **{f"by_{k}": v for k, v in fields.pop("sensitivity").items()}})
        rows[-1].pop("sensitivity")
    pd.DataFrame(rows).to_csv(path, index=False)


def load(path: Path) -> list[Figure]:
    """What `save` wrote."""
    import pandas as pd

    figures = []
    for record in pd.read_csv(path, keep_default_na=False, na_values={"load_fraction": [""]}).to_dict(
        "records"
    ):
        sensitivity = {name: float(record.pop(f"by_{name}")) for name in EFFECTS}
        if math.isnan(record["load_fraction"]):
            record["load_fraction"] = None
        figures.append(Figure(sensitivity=sensitivity, **record))
    return figures


def main(arguments: list[str]) -> int:
    folder = shared_folder()
    if folder is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    figures = all_figures(folder)
    save(figures, Path(arguments[0]))
    print(f"{len(figures)} figures of {len({f.source for f in figures})} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
