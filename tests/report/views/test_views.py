"""Views: every path leads to a field, and every surface shows the same figures."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import capacity_validate
import metrics_server
import pytest
from capacity_validate.watching import Watcher
from quick_plans import quick

import capacity
from capacity.answers.records import Quantity
from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.planning.sweeps.sweep_spec import SweepSpec
from capacity.report.display import Units
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.layout import parse_marks
from capacity.report.tables import render
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit, value_at
from capacity.report.views.view import Column, Drawing, Facts, Table, View
from capacity.techniques.quantize import quantization_list
from capacity.techniques.speculate import speculation_methods, textbook
from capacity.workload import FixedLengths, SteadyArrivals, conversations, parse_slos, write_timed_trace
from capacity.workload.synthetic import ThinkTime

SHORT = {"input_len": 64, "output_len": 8, "request_rate": 4.0, "num_prompts": 20}
LLAMA: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100"}
LENGTHS: dict[str, Any] = {"input_len": 300, "output_len": 60}
ASKED = {
    "quantize": lambda: capacity.quantize(**LLAMA, price="2", methods=("fp8-tensor", "awq-int4")),
    "quantizations": quantization_list,
    "speculate": lambda: capacity.speculate(**LLAMA),
    "textbook": textbook,
    "speculators": speculation_methods,
    "scale": lambda: capacity.scale(**LLAMA, most_gpus=2, tpot_s=1.0),
    "attention-io": lambda: capacity.attention_traffic(**LLAMA),
    "beam-search": lambda: capacity.beam_search(**LLAMA),
    "batching": lambda: capacity.compare_batching(
        **LLAMA, max_model_len=4096, input_len=100, output_len=20, num_prompts=12, max_batch=4
    ),
    "kv": lambda: capacity.kv("llama-3.1-8b", gpus="h100", eviction="all", window_tokens=4096),
    "tornado": lambda: capacity.tornado(
        **LLAMA, input_len=64, output_len=8, request_rate=4.0, num_prompts=20
    ),
    "cascade": lambda: capacity.cascade(
        **LLAMA,
        small="llama-3.2-1b",
        escalation_rate=0.3,
        cache_hit_rate=0.1,
        price="2",
        simulate=True,
        input_len=64,
        output_len=8,
        request_rate=4.0,
        num_prompts=20,
    ),
    "fleet": lambda: capacity.fleet(
        "llama-3.2-1b",
        slo="ttft:p95:2000ms",
        gpus="l4",
        quantizations="default",
        tensor_parallel_sizes=(1,),
        input_len=600,
        output_len=20,
        length_distribution="lognormal",
        request_rate=10.0,
        num_prompts=60,
        replications=1,
        split_at=(512,),
        peak_to_mean=1.5,
        price="2",
    ),
    "hall": lambda: capacity.plan_hall(
        [
            {
                "model": "llama-3.2-1b",
                "slo": "ttft:p95:2s",
                "request_rate": 10,
                "input_len": 300,
                "output_len": 20,
            }
        ],
        power_budget="10kW",
        gpus="l4",
        power_cap=(None,),
        price="l4=0.8",
        grid_region="germany",
    ),
    "frontier": lambda: capacity.frontier(
        "llama-3.1-70b",
        gpus=("h100", "l4"),
        tensor_parallel_sizes=(4,),
        loads=(1, 8),
        input_len=64,
        output_len=8,
        price="2",
    ),
    "plan": lambda: quick(quantizations=(None, "int4"), price="h100=2", objective="cost", num_prompts=60),
    "advice": lambda: capacity.advise(
        **LLAMA, input_len=64, output_len=8, request_rate=4.0, num_prompts=20, price="2"
    ),
    "cost": lambda: capacity.cost(
        **LLAMA,
        **SHORT,
        price="2",
        documents=1000,
        deadline_hours=2.0,
        idle_hours_per_day=8.0,
        interruptions_per_hour=0.5,
        api_input_price=0.1,
        api_output_price=0.4,
        batch_api="openai",
    ),
    "diff": lambda: capacity.diff(
        {"model": LLAMA["model"], "pools": [{"gpu": "h100"}], "traffic": SHORT},
        {"model": LLAMA["model"], "pools": [{"gpu": "h100", "replicas": 2}]},
        replications=2,
    ),
    "deployment-comparison": lambda: capacity.compare_deployments(
        [
            {
                "model": LLAMA["model"],
                "pools": [{"gpu": gpu}],
                "traffic": LENGTHS | {"request_rate": 20.0},
                "cost": {"price": "2"},
            }
            for gpu in ("h100", "h200")
        ],
        slo=["ttft:p95:1s"],
    ),
    "stack": lambda: capacity.stack(
        **LLAMA,
        input_len=128,
        output_len=16,
        concurrency=4,
        num_prompts=8,
        price="2",
        order=["kv-cache", "prefix-caching", "static-batching"],
    ),
    "engines": lambda: capacity.engine_table(claims=True),
    "gpu-support": lambda: capacity.gpu_support(gpus=["h100", "t4"]),
    "curve": lambda: capacity.curve(
        **LLAMA,
        **LENGTHS,
        num_prompts=60,
        rates=[1.0, 8.0, 16.0],
        slo="ttft:p95:50ms",
        price="1",
        peak_rate=20.0,
    ),
    "fit": lambda: capacity.fit("llama-3.1-8b", gpu="l4"),
    "estimate": lambda: capacity.estimate(**LLAMA, request_rate=2.0, price="1", **LENGTHS),
    "explain": lambda: capacity.explain(**LLAMA, batch_size=8, **LENGTHS),
    "fit-comparison": lambda: capacity.compare_fits("llama-3.1-70b"),
    "gpu-comparison": lambda: capacity.compare_gpus(
        "llama-3.1-70b", gpus=("l4", "h100"), concurrency=8, price_tier="on-demand", **LENGTHS
    ),
    "engine-comparison": lambda: capacity.compare_engines(
        **LLAMA, engines=("vllm", "tgi"), concurrency=4, price="1", **LENGTHS
    ),
    "simulation": lambda: capacity.simulate(
        **LLAMA,
        **LENGTHS,
        request_rate=4.0,
        num_prompts=120,
        price="1",
        slo=["ttft:p95:1s"],
        goodput=["ttft:1"],
    ),
    "load-sweep": lambda: capacity.load_sweep(**LLAMA, loads=(1, 16), price="1", **LENGTHS),
}


@pytest.fixture(scope="module")
def answer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AnswerRecord]:
    """Return a function that asks once for the answer of a view, with all its parts."""

    @cache
    def answer(name: str) -> AnswerRecord:
        return WITH_FILES[name](tmp_path_factory.mktemp(name)) if name in WITH_FILES else ASKED[name]()

    return answer


def watched(folder: Path) -> AnswerRecord:
    """Five windows of a simulated server."""
    day = metrics_server.serve_day({"rate": 4, "end_rate": 4, "seconds": 300})
    path = folder / "metrics.txt"
    slos = parse_slos("ttft:p95:1s")
    watcher = Watcher(source=str(path), slos=slos, model=None, options={"gpu": "h100"})
    for minute in range(6):
        path.write_text(metrics_server.metrics_text(day, 60.0 * minute))
        watcher.scrape(None)
    report = watcher.report()
    assert report is not None
    return report


def measured(folder: Path) -> AnswerRecord:
    """A benchmark's result beside what is predicted of it."""
    result = {"backend": "vllm", "num_prompts": 2, "request_rate": 1.0, "duration": 3.0, "completed": 2}
    result |= {"input_lens": [100, 200], "output_lens": [10, 10], "start_times": [0.0, 1.0]}
    result |= {"total_input_tokens": 300, "total_output_tokens": 20, "endpoint_type": "openai"}
    result |= {"ttfts": [0.3, 0.3], "itls": [[0.01] * 9, [0.01] * 9], "mean_tpot_ms": 10.0}
    path = folder / "result.json"
    path.write_text(json.dumps(result))
    return capacity_validate.compare([path], **LLAMA)


def swept(folder: Path) -> AnswerRecord:
    spec = SweepSpec(
        schema="capacity/sweep/v1",
        question="estimate",
        fixed={"model": "llama-3.1-8b", "gpu": "h100", "input_len": 100, "output_len": 20},
        vary={"batch_size": (*range(1, 41), 4096)},
    )
    return capacity.sweep(spec, folder / "store")


def cached(folder: Path) -> AnswerRecord:
    workload = conversations(
        num_sessions=12,
        arrivals=SteadyArrivals(1.0),
        turns=FixedLengths(3),
        user_tokens=FixedLengths(160),
        output=FixedLengths(32),
        think_time=ThinkTime(1.0),
        system_prompt_tokens=320,
    )
    write_timed_trace(workload, folder / "trace.jsonl")
    served_by = ("llama-3.1-8b", {"gpu": "h100"})
    return capacity.cache_curve(str(folder / "trace.jsonl"), replicas=2, served_by=served_by)


WITH_FILES = {"cache-curve": cached, "swept": swept, "comparison": measured, "watch": watched}
VIEWS = [name for name, answer in ANSWERS.items() if answer.view]


def view_of(name: str, answer: AnswerRecord) -> View:
    view: View = resolve_name(ANSWERS[name].view)(answer)
    return View(view.title, list(view.blocks), list(view.detail), screen=list(view.screen))


def kind_at(kind: Any, path: str) -> Any:
    """The type that a path leads to. Raises AttributeError for a path that no field answers."""
    for name in path.split(".") if path else ():
        if get_origin(kind) in (Union, UnionType):
            (kind,) = (each for each in get_args(kind) if each is not NoneType)
        if name.isdigit():
            kind = get_args(kind)[0]
        elif is_dataclass(kind) and name in {field.name for field in fields(kind)}:
            kind = get_type_hints(kind)[name]
        else:
            kind = get_type_hints(getattr(kind, name).fget)["return"]
    return kind


def test_every_view_has_an_answer() -> None:
    assert set(VIEWS) == ASKED.keys() | WITH_FILES.keys()


@pytest.mark.parametrize("name", VIEWS)
def test_every_path_leads_to_a_field(name: str, answer_of: Callable[[str], AnswerRecord]) -> None:
    view = view_of(name, answer_of(name))
    tables = [block for block in (*view.blocks, *view.detail, *view.screen) if isinstance(block, Table)]
    if name == "fit":
        assert not tables
        return
    assert any(table.rows for table in tables)
    paths = [(table.rows[0], column.path) for table in tables if table.rows for column in table.columns]
    for row, path in paths:
        if isinstance(path, str):
            if type(row) is tuple:
                row, path = row[int(path.partition(".")[0])], path.partition(".")[2]
            assert path in row if isinstance(row, dict) else kind_at(type(row), path)
    with pytest.raises(AttributeError):
        kind_at(type(paths[0][0]), "no_such_field")


@pytest.mark.ci
@pytest.mark.parametrize("name", VIEWS)
def test_console_page_and_dashboard_show_the_same(
    name: str, answer_of: Callable[[str], AnswerRecord]
) -> None:
    answer = answer_of(name)
    page = re.sub("<[^>]*>", "", html.unescape(render(answer, "html")))
    console = render(answer, "table")
    for block in view_of(name, answer).blocks:
        if isinstance(block, str):
            assert " ".join(parse_marks(block).plain.removeprefix("note: ").split()) in " ".join(page.split())
            assert "".join(parse_marks(block).plain.removeprefix("note: ").split()[:1]) in console
        if isinstance(block, Facts):
            for fact in block.rows:
                assert fact.label.strip() in page
                assert all(html.unescape(text) in page for text in fact.texts())
        if isinstance(block, Drawing):
            (chart,) = (each for each in answer_charts(answer) if each.name == block.name)
            assert chart.title in page
            assert chart.rows
        for fact in block.rows if isinstance(block, Facts) else ():
            assert all(text in page for text in (fact.label, *fact.texts()))
        for row, record in (
            zip(block.rows, table_records(block), strict=True) if isinstance(block, Table) else ()
        ):
            assert len(record) >= len(block.columns)
            for _, path, unit, _ in block.columns:
                text, within = unit.texts(value_at(row, path))
                assert parse_marks(text).plain in page
                assert within in page


def test_records_hold_numbers_as_exact_as_the_texts_with_their_intervals() -> None:
    row = SimpleNamespace(time=Quantity(value=0.1234, low=0.1, high=0.15), share=0.2561, fits=True, none=None)
    columns = (
        Column("time, {time}", "time", units.MS),
        Column("share", "share", Unit(1, 100, "%")),
        Column("fits", "fits", units.TEXT),
        Column("small", lambda row: row.share / 1000, Unit(1)),
        Column("count", lambda _: 4096, units.TOKENS),
        Column("none", "none", units.COUNT),
    )
    (record,) = table_records(Table("", [row], columns), Units(time="s"))
    assert record == {
        "time, s": 0.123,
        "time, s low": 0.1,
        "time, s high": 0.15,
        "share, %": 25.6,
        "fits": True,
        "small": 0.000256,
        "count": 4096,
        "none": None,
    }
