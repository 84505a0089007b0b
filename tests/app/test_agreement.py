"""A page, the library and the command that the page shows answer the same question with the same numbers.

Each question is asked three times: by a link to the page, by the library with keywords written here by hand, and by
running the command that the page offers to copy. The page's figures must be the library's, rounded as they are shown,
and the command's record must be the library's, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capacity_app.error_display import escape_markdown
from copied_commands import printed
from long_forms import mostly_ci

import capacity
from capacity.answers.records import Quantity
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, write_deployment
from capacity.report.display import (
    number_text,
    rate_and_interval,
    seconds_and_interval,
    text_and_interval,
    time_and_interval,
    with_relative_interval,
)
from capacity.report.replicas import replicas_text
from capacity.report.views.cost import JOULES
from capacity.report.views.stack import factor_text
from capacity.report.views.units import USD
from capacity.simulator.verdict import UNSETTLED
from capacity.techniques.speculate import speculate

Open = Callable[..., Any]
Record = Mapping[str, Any]
Figures = Mapping[str, Callable[[Record], str]]
"""By a figure's label on the page: what it must show of an answer's record."""

LLAMA = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}
LENGTHS = {"input_len": 1024, "output_len": 256}
PRICED = {"price_tier": "on-demand"}
SIDEBAR_SLO = ("ttft:p95:1000ms", "tpot:p95:50ms")


@dataclass(frozen=True, kw_only=True)
class Question:
    """`link` is what the page is opened with, `asked` the same for the library; the rest is how it is answered."""

    page: str
    link: Mapping[str, Any]
    ask: Callable[..., Any]
    asked: Mapping[str, Any]
    figures: Figures
    press: str = ""  # the key of the button that starts it
    copy: int = 0  # which of the page's commands is its own


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"


def of_row(row: Record, name: str) -> str:
    """A time of a row with the digits of its interval."""
    low, high = row["intervals_s"][name]
    return time_and_interval(Quantity(value=row[name], low=low, high=high))[0]


def predicted(record: Record, name: str, kind: Callable[[Quantity], tuple[str, str]]) -> str:
    """A quantity with the digits that its interval leaves; - where the answer has none."""
    return "-" if record[name] is None else kind(Quantity(**record[name]))[0]


def latency(record: Record, name: str, like: str | None = None) -> str:
    """A latency of a simulation, with the digits of its interval."""
    interval = record["prediction_intervals"][like or name]
    quantity = Quantity(value=record[name], low=interval["low"], high=interval["high"]).scale(1e-3)
    return time_and_interval(quantity)[0]


def in_flight(count: float, e2e_s: Quantity) -> str:
    return number_text(count, with_relative_interval(count, e2e_s))


ESTIMATED: Figures = {
    "TTFT": lambda r: predicted(r, "ttft_s", time_and_interval),
    "TPOT": lambda r: predicted(r, "tpot_s", time_and_interval),
    "E2E latency": lambda r: predicted(r, "e2e_s", seconds_and_interval),
    "Output tokens/s": lambda r: predicted(r, "output_tokens_per_s", rate_and_interval),
    "$ per 1M output": lambda r: USD.texts(Quantity(**r["usd_per_million_output_tokens"]))[0],
}
SERVED: Figures = {
    **ESTIMATED,
    "In flight": lambda r: (
        "unbounded"
        if r["requests_in_flight"] is None
        else in_flight(r["requests_in_flight"], Quantity(**r["e2e_s"]))
    ),
}


def priced(record: Record, price: str) -> str:
    """A price, or a dash where the run shows no steady state."""
    return "-" if record["verdict"] in UNSETTLED else price


def run_rate(record: Mapping[str, Any], name: str, plain: str) -> str:
    """The rate of a run with the digits that its interval leaves."""
    interval = record["prediction_intervals"].get(name)
    if interval is None:
        return plain.format(record[name])
    return rate_and_interval(Quantity(value=record[name], low=interval["low"], high=interval["high"]))[0]


SIMULATED: Figures = {
    "Mean TTFT": lambda r: latency(r, "mean_ttft_ms"),
    "p95 TTFT": lambda r: latency(r, "p95_ttft_ms"),
    "Mean TPOT": lambda r: latency(r, "mean_tpot_ms"),
    "Requests/s": lambda r: run_rate(r, "request_throughput", "{:,.2f}"),
    "Output tokens/s": lambda r: run_rate(r, "output_throughput", "{:,.0f}"),
    "Goodput": lambda r: f"{r['request_goodput']:,.2f}",
    "$ per 1M output": lambda r: priced(r, f"${r['cost']['usd_per_million_output_tokens']:,.3f}"),
    "$ per 1k requests": lambda r: priced(r, f"${1e3 * r['cost']['usd_per_request']:,.4f}"),
}
BILLED: Figures = {
    "Per hour": lambda r: f"${r['usd_per_hour']:,.2f}",
    "Per month": lambda r: f"${r['usd_per_month']:,.0f}",
    "$ per 1M output": lambda r: f"${r['served']['usd_per_million_output_tokens']:,.3f}",
    "$ per 1M input": lambda r: f"${r['served']['usd_per_million_input_tokens']:,.3f}",
    "$ per 1k requests": lambda r: f"${r['served']['usd_per_thousand_requests']:,.4f}",
    "Utilization": lambda r: f"{r['utilization']:.0%}",
    "Provisioned energy": lambda r: f"{r['served']['joules_per_output_token']:,.2f} J",
    "Drawn energy": lambda r: JOULES.texts(Quantity(**r["served"]["drawn"]["joules_per_output_token"]))[0],
}
FITTED: Figures = {
    "KV cache": lambda r: f"{r['memory']['kv_cache_bytes'] / 2**30:,.2f} GiB",
    "Longest request": lambda r: f"{r['max_context_tokens']:,} tokens",
    "Concurrency": lambda r: f"{r['max_concurrency']:,.2f}",
    "Smallest TP": lambda r: str(r["smallest_tensor_parallel_size"]),
}


def drafted(batch: int) -> Figures:
    """The figures of one batch size."""

    def row(record: Record) -> Record:
        return next(row for row in record["rows"] if row["batch_size"] == batch)

    return {
        f"Times as fast at batch {batch}": lambda r: f"{row(r)['speedup']:.2f}",
        "TPOT": lambda r: ms(row(r)["tpot_s"]),
        "Tokens per round": lambda r: f"{row(r)['tokens_per_round']:.2f}",
        "Break-even batch": lambda r: (
            "never" if r["break_even_batch"] is None else f"{r['break_even_batch']:,}"
        ),
    }


def estimated(link: Mapping[str, str], figures: Figures = SERVED, **asked: Any) -> Question:
    return Question(
        page="estimate",
        link=link,
        ask=capacity.estimate,
        asked={**LLAMA, **LENGTHS, **PRICED, **asked},
        figures=figures,
    )


def simulated(link: Mapping[str, str], **asked: Any) -> Question:
    common = {"num_prompts": 120, "length_distribution": "lognormal", "goodput": ("ttft:1000", "tpot:50")}
    return Question(
        page="simulate",
        link={"sim_requests": "120", "lengths": "lognormal", **link},
        ask=capacity.simulate,
        asked={
            name: given
            for name, given in {**LLAMA, **LENGTHS, **PRICED, **common, **asked}.items()
            if given is not None
        },
        figures=SIMULATED,
    )


def billed(link: Mapping[str, str], **asked: Any) -> Question:
    return Question(
        page="cost",
        link={"cost_requests": "120", **link},
        ask=capacity.cost,
        asked={
            **LLAMA,
            **LENGTHS,
            "num_prompts": 120,
            "request_rate": 4.0,
            "api": "all",
            "slo": SIDEBAR_SLO,
            **asked,
        },
        figures=BILLED,
    )


def speculated(link: Mapping[str, str], batch: int, **asked: Any) -> Question:
    return Question(
        page="speculation",
        link={"spec_batch": str(batch), **link},
        ask=speculate,
        asked={
            **LLAMA,
            "draft_tokens": 3,
            "context_tokens": 1024,
            "batches": (1, 2, 4, 8, 16, 32, 64, 128, 256),
            **asked,
        },
        figures=drafted(batch),
    )


def quantized(link: Mapping[str, str], method: str, **asked: Any) -> Question:
    def row(record: Record) -> Record:
        return next(row for row in record["rows"] if row["method"] == method)

    return Question(
        page="quantization",
        link={"quant_method": method, **link},
        ask=capacity.quantize,
        asked={**LLAMA, **LENGTHS, **PRICED, "large_batch": 64, **asked},
        figures={
            "TPOT alone": lambda r: of_row(row(r), "tpot_small_s"),
            "TPOT in a batch": lambda r: of_row(row(r), "tpot_large_s"),
            "TTFT": lambda r: of_row(row(r), "ttft_s"),
            "Most requests": lambda r: f"{row(r)['max_batch']:,}",
            "$ per 1M tokens": lambda r: usd_of(row(r)),
        },
    )


def scaled(link: Mapping[str, str], **asked: Any) -> Question:
    def last(record: Record) -> Record:
        return [row for row in record["rows"] if row["tpot_s"] is not None][-1]

    return Question(
        page="scaling",
        link=link,
        ask=capacity.scale,
        asked={**LLAMA, **LENGTHS, **PRICED, "concurrency": 32, "axis": "tensor", "most_gpus": 8, **asked},
        figures={
            "Times as fast": lambda r: f"{last(r)['speedup']:.2f}",
            "Efficiency": lambda r: f"{last(r)['efficiency']:.0%}",
            "Links": lambda r: f"{last(r)['communication_share']:.0%}",
        },
    )


def apart(link: Mapping[str, str], **asked: Any) -> Question:
    common = {"num_prompts": 60, "request_rate": 4.0, "replicas": 2, "router": "least-outstanding"}
    return Question(
        page="disaggregation",
        link={"dis_n": "60", "dis_replicas": "2", **link},
        ask=capacity.simulate,
        asked={**LLAMA, **LENGTHS, **common, **asked},
        figures={
            "p95 TTFT": lambda r: latency(r, "p95_ttft_ms"),
            "p95 TPOT": lambda r: latency(r, "p95_tpot_ms"),
            "p95 E2E": lambda r: latency(r, "p95_e2el_ms"),
            "Requests/s": lambda r: f"{r['request_throughput']:,.2f}",
        },
    )


def frontier_best(record: Record) -> tuple[Record, Record]:
    """The line and the point with the most output tokens/s per GPU whose TPOT keeps 25 ms."""
    within = [
        (line, point)
        for line in record["lines"]
        for point in line["points"]
        if point["tpot_s"] is not None and point["tpot_s"]["value"] <= 0.025
    ]
    return max(within, key=lambda pair: pair[1]["output_tokens_per_s_per_gpu"]["value"])


def frontier(link: Mapping[str, str], **asked: Any) -> Question:
    def best(record: Record, name: str) -> Quantity:
        return Quantity(**frontier_best(record)[1][name])

    def name(record: Record) -> str:
        line, _ = frontier_best(record)
        return (
            f"{line['num_gpus']} x {line['gpu']}, {line['quantization'] or 'as published'}, {line['engine']}"
        )

    return Question(
        page="estimate",
        link={"view": "frontier", **link},
        ask=capacity.frontier,
        asked={"model": "llama-3.1-8b", **LENGTHS, **PRICED, **asked},
        figures={
            "Best deployment": name,
            "Best: per GPU": lambda r: rate_and_interval(best(r, "output_tokens_per_s_per_gpu"))[0],
            "Best: per user": lambda r: rate_and_interval(best(r, "tpot_s").inverse(1.0))[0],
            "Best: $ per 1M": lambda r: USD.texts(best(r, "usd_per_million_output_tokens"))[0],
        },
        copy=-1,
    )


def stacked(link: Mapping[str, str], **asked: Any) -> Question:
    def last(record: Record) -> Record:
        return [step["figures"] for step in record["steps"] if step["figures"] is not None][-1]

    return Question(
        page="stack",
        link={"stack_n": "30", "isl": "256", "osl": "64", **link},
        ask=capacity.stack,
        asked={**LLAMA, "input_len": 256, "output_len": 64, "num_prompts": 30, **PRICED, **asked},
        figures={
            "Together": lambda r: factor_text(r["together"]["throughput"]),
            "If multiplied": lambda r: factor_text(r["product_of_single"]["throughput"]),
            "Output tokens/s": lambda r: predicted(last(r), "output_tokens_per_s", rate_and_interval),
            "TTFT": lambda r: predicted(last(r), "ttft_s", time_and_interval),
            "TPOT": lambda r: predicted(last(r), "tpot_s", time_and_interval),
            "$ per 1M output": lambda r: USD.texts(Quantity(**last(r)["usd_per_million_output_tokens"]))[0],
        },
        press="run_stack",
    )


CASCADED: Figures = {
    "Saved": lambda r: f"{r['saved_fraction']:.0%}",
    "$ a month": lambda r: "$" + text_and_interval(Quantity(**r["cascade"]["usd_per_month"]), digits=0)[0],
    "GPUs": lambda r: f"{r['cascade']['billed_gpus']:,}",
}
WAITED: Figures = {
    "Mean TTFT": lambda r: predicted(r["cascade"], "mean_ttft_s", time_and_interval),
    "Mean E2E": lambda r: predicted(r["cascade"], "mean_e2e_s", time_and_interval),
    "p95 E2E": lambda r: predicted(r["cascade"], "p95_e2e_s", time_and_interval),
}


def cascaded(link: Mapping[str, str], figures: Figures, **asked: Any) -> Question:
    def even(name: str) -> Callable[[Record], str]:
        def shown(record: Record) -> str:
            rate = record["break_even"][name]
            found = None if rate is None else Quantity(**rate)
            if found is None or found.value >= 1:
                return "never" if found is None else "any"
            return text_and_interval(found, 100, 1, "%")[0]

        return shown

    rates = {"small": "Pays up to", "cache_hit_rate": "Pays from"}
    fields = {"small": "escalation_rate_at_scale", "cache_hit_rate": "cache_hit_rate_at_scale"}
    return Question(
        page="cascade",
        link={"rate": "20", **link},
        ask=capacity.cascade,
        asked={"model": "llama-3.1-8b", **LENGTHS, **PRICED, "request_rate": 20.0, **asked},
        figures={**figures, **{label: even(fields[name]) for name, label in rates.items() if name in asked}},
    )


def pooled(link: Mapping[str, str], **asked: Any) -> Question:
    slo = ("ttft:p95:1000ms", "tpot:p95:50ms")
    return Question(
        page="fleet",
        link={"fleet_n": "60", "fleet_gpus": "l40s-48gb", **link},
        ask=capacity.fleet,
        asked={
            "model": "llama-3.1-8b",
            "gpus": ("l40s-48gb",),
            "slo": slo,
            **LENGTHS,
            **PRICED,
            "request_rate": 4.0,
            "num_prompts": 60,
            "max_gpus": 64,
            "time_limit_s": 60.0,
            **asked,
        },
        figures={
            "GPUs": lambda r: f"{r['best']['num_gpus']:,}",
            "Per hour": lambda r: f"${r['best']['usd_per_hour']:,.2f}",
            "$ per 1k requests": lambda r: f"${1e3 * r['best']['usd_per_request']:,.4f}",
            "Saved": lambda r: f"{r['saved']:.1%}",
        },
        press="run_fleet",
    )


def beamed(link: Mapping[str, str], **asked: Any) -> Question:
    def last(record: Record) -> Record:
        own = [row for row in record["rows"] if row["way"] == record["engine_way"]]
        return max(own, key=lambda row: row["beam_width"])

    return Question(
        page="beam_search",
        link=link,
        ask=capacity.beam_search,
        asked={**LLAMA, **LENGTHS, "batch_size": 1, "beam_widths": (1, 2, 4, 8), **asked},
        figures={
            "TPOT": lambda r: predicted(last(r), "tpot_s", time_and_interval),
            "Times greedy": lambda r: f"{last(r)['times_greedy']:.2f}",
            "E2E latency": lambda r: predicted(last(r), "e2e_s", seconds_and_interval),
            "Requests/s": lambda r: predicted(last(r), "requests_per_s", rate_and_interval),
            "KV of a request": lambda r: f"{last(r)['kv_tokens']:,} tokens",
            "Requests held": lambda r: f"{last(r)['most_requests']:,}",
        },
    )


def cached(link: Mapping[str, str], context: int, **asked: Any) -> Question:
    def most(record: Record) -> float:
        return max(r["tokens_per_s"] for r in record["evictions"] if r["context_tokens"] == context)

    return Question(
        page="kv",
        link=link,
        ask=capacity.kv,
        asked={
            "model": "llama-3.1-8b",
            "gpus": "h100-sxm-80gb",
            "batch_size": 32,
            "eviction": "all",
            "budget_tokens": 1024,
            **asked,
        },
        figures={
            "KiB a token": lambda r: f"{r['rows'][0]['bytes_per_token'] / 1024:,.1f}",
            "Fits on the GPU": lambda r: (
                f"{next(iter(r['rows'][0]['gpu_context_tokens'].values())):,} tokens"
            ),
            "KV eviction": lambda r: f"{most(r):,.0f} tokens/s",
        },
    )


def fitted(link: Mapping[str, str], **asked: Any) -> Question:
    return Question(page="fit", link=link, ask=capacity.fit, asked={**LLAMA, **asked}, figures=FITTED)


def usd_of(row: Record) -> str:
    """$ per million tokens of a format, as sure as its time per output token."""
    low, high = row["intervals_s"]["tpot_large_s"]
    tpot = Quantity(value=row["tpot_large_s"], low=low, high=high)
    return USD.texts(with_relative_interval(row["usd_per_million_tokens"], tpot))[0]


def as_simulated(name: str, seconds: float) -> str:
    """The same figure of a run alone, with the digits that its interval leaves."""
    run = capacity.simulate("llama-3.1-8b", **LENGTHS, gpu="h100-sxm-80gb", request_rate=4.0, num_prompts=40)
    found = run.predicted_ms[name].scale(1e-3)
    assert found.value == pytest.approx(seconds)
    return time_and_interval(found)[0]


LOOP, RATE = {"load": "a closed loop"}, {"load": "arrivals at a rate"}
QUESTIONS = {
    "a batch": estimated({"batch": "16"}, ESTIMATED, batch_size=16),
    "a batch over the network": estimated(
        {"batch": "8", "client": "6.5"}, ESTIMATED, batch_size=8, client_latency_s="inferencex"
    ),
    "a closed loop of equal lengths": estimated(
        {**LOOP, "concurrency": "32", "range": "0"}, concurrency=32, random_range_ratio=0.0
    ),
    "a closed loop of lengths as measured": estimated({**LOOP, "concurrency": "32"}, concurrency=32),
    "a closed loop of lengths that differ": estimated(
        {**LOOP, "concurrency": "32", "range": "0.8"}, concurrency=32, random_range_ratio=0.8
    ),
    "a closed loop that waits": estimated({**LOOP, "concurrency": "5000"}, concurrency=5000),
    "arrivals at a rate": estimated(
        {**RATE, "rate": "12", "range": "0.5", "client": "0"},
        request_rate=12.0,
        random_range_ratio=0.5,
        client_latency_s=0.0,
    ),
    "more arrivals than it serves": estimated(
        {**RATE, "rate": "60"}, SERVED | {"$ per 1M output": lambda _: "-"}, request_rate=60.0
    ),
    "a mixture of experts on four GPUs": estimated(
        {**RATE, "model": "qwen3-30b-a3b", "tp": "4", "ep": "true", "rate": "6"},
        model="qwen3-30b-a3b",
        tensor_parallel_size=4,
        enable_expert_parallel=True,
        request_rate=6.0,
    ),
    "Poisson arrivals": simulated({}, request_rate=4.0),
    "a simulated closed loop": simulated(
        {
            "sim_arrivals": "closed loop",
            "concurrency": "8",
            "lengths": "not set",
            "range": "0.3",
        },
        concurrency=8,
        length_distribution=None,
        random_range_ratio=0.3,
    ),
    "two replicas, seen from the same machine": simulated(
        {"sim_replicas": "2", "rate": "8", "client": "0"},
        request_rate=8.0,
        replicas=2,
        router="round-robin",
        client_latency_s="same-machine",
    ),
    "on and off": simulated(
        {"sim_arrivals": "on and off", "rate": "20", "sim_on": "2", "sim_off": "8"},
        request_rate=20.0,
        arrivals="on-off",
        on_s=2.0,
        off_s=8.0,
    ),
    "the busiest minutes of a day": simulated(
        {"sim_arrivals": "a day", "rate": "8", "sim_peak": "2", "sim_day": "86400"},
        request_rate=8.0,
        arrivals="diurnal",
        day_peak_to_mean=2.0,
        day_length_s=86_400.0,
    ),
    "a bill": billed({}, **PRICED),
    "a bill by a three-year term": billed({"tier": "reserved-3y"}, price_tier="reserved-3y"),
    "a bill by one's own price": billed({"tier": "my own", "price": "1.8"}, price="1.8"),
    "a bill by a mix of tiers": billed(
        {"tier": "mix of tiers", "mix": "reserved=0.5,on-demand=0.5"},
        price_mix="reserved=0.5,on-demand=0.5",
    ),
    "a bill of an owned server": billed(
        {"tier": "owned server", "owned": "purchase=300000,gpus=8,years=4,kwh=0.1"},
        owned_cost="purchase=300000,gpus=8,years=4,kwh=0.1",
    ),
    "a bill of a growing load": billed(
        {"cost_growth": "10.0", "cost_months": "6"}, growth=10.0, months=6, **PRICED
    ),
    "a bill of two replicas in FP8": billed(
        {"cost_replicas": "2", "weights": "fp8", "range": "0.5"},
        quantization="fp8",
        replicas=2,
        random_range_ratio=0.5,
        **PRICED,
    ),
    "a chain of EAGLE-3": speculated({}, 8, method="eagle3"),
    "a tree of EAGLE-3": speculated({"spec_method": "eagle3-tree"}, 4, method="eagle3-tree"),
    "a draft model": speculated(
        {"spec_method": "draft-model", "spec_known": "my own", "spec_acceptance": "0.6"},
        16,
        method="draft-model",
        draft="llama-3.2-1b",
        acceptance="0.6",
    ),
    "FP8 weights": quantized({}, "fp8-tensor"),
    "4-bit weights on another card": quantized(
        {"gpu": "l40s-48gb", "quant_batch": "16"}, "awq-int4", gpu="l40s-48gb", large_batch=16
    ),
    "tensor parallelism": scaled({}),
    "pipeline stages that meet a TPOT": scaled(
        {"scale_axis": "pipeline", "scale_most": "4", "scale_tpot": "12"},
        axis="pipeline",
        most_gpus=4,
        tpot_s=0.012,
    ),
    "replicas that do both": apart({"dis_prefill": "0"}),
    "one prefills, one decodes": apart(
        {"dis_link": "pcie", "dis_layers": "true"},
        prefill_replicas=1,
        kv_transfer_link="pcie",
        kv_transfer_layerwise=True,
    ),
    "what would help": Question(
        page="advise",
        link={"adv_n": "40"},
        ask=capacity.advise,
        asked={**LLAMA, **LENGTHS, **PRICED, "request_rate": 4.0, "num_prompts": 40},
        figures={
            "p95 TTFT": lambda r: as_simulated("p95_ttft_ms", r["base"]["ttft_p95_s"]),
            "p95 E2E": lambda r: as_simulated("p95_e2el_ms", r["base"]["e2e_p95_s"]),
            "$ per 1k requests": lambda r: f"${1e3 * r['base']['usd_per_request_full']:.3g}",
        },
        press="run_advise",
    ),
    "a frontier": frontier(
        {"front_gpus": "h100-sxm-80gb", "front_tp": "2", "front_weights": "fp8", "isl": "2048"},
        gpus=("h100-sxm-80gb",),
        quantizations=("fp8",),
        tensor_parallel_sizes=(2,),
        input_len=2048,
    ),
    "every technique in a closed loop": stacked({"concurrency": "8"}, concurrency=8),
    "techniques in an order of one's own at a rate": stacked(
        {"stack_load": RATE["load"], "stack_order": ("bf16", "kv-cache", "static-batching")},
        request_rate=4.0,
        order=("bf16", "kv-cache", "static-batching"),
    ),
    "a small model first": cascaded(
        {}, CASCADED | WAITED, gpu="h100-sxm-80gb", small="llama-3.2-1b", escalation_rate=0.3
    ),
    "both models as one deployment": cascaded(
        {"casc_whole": "true", "casc_by": "the prompt", "rate": "4"},
        CASCADED | WAITED,
        gpu="h100-sxm-80gb",
        small="llama-3.2-1b",
        escalation_rate=0.3,
        escalate_by="prompt",
        simulate=True,
        request_rate=4.0,
    ),
    "a cache before an API": cascaded(
        {"casc_on": "an API", "casc_small": "false", "casc_cache": "true", "casc_hits": "0.4"},
        CASCADED,
        api_input_price=0.4,
        api_output_price=0.4,
        cache_hit_rate=0.4,
    ),
    "a fleet with a reserve over a day": pooled(
        {"fleet_spare": "1", "fleet_peak": "1.5"}, spare_replicas=1, peak_to_mean=1.5
    ),
    "a fleet told apart by whole requests": pooled(
        {"fleet_n": "20", "model": "llama-3.2-1b", "fleet_by": "prompt and answer"},
        model="llama-3.2-1b",
        num_prompts=20,
        split_by="request",
    ),
    "beams of a batch in TensorRT-LLM": beamed(
        {"engine": "tensorrt-llm", "beam_batch": "8"}, engine="tensorrt-llm", batch_size=8
    ),
    "keeping less KV": cached({}, 32768),
    "keeping less of an FP8 cache on two GPUs": cached(
        {"kv": "fp8", "tp": "2", "kv_context": "4K", "kv_budget": "512"},
        4096,
        kv_cache_dtype="fp8",
        tensor_parallel_size=2,
        budget_tokens=512,
    ),
    "KV cache as published": fitted({}),
    "KV cache in FP8 on two GPUs": fitted(
        {"model": "qwen3-32b", "tp": "2", "kv": "fp8"},
        model="qwen3-32b",
        tensor_parallel_size=2,
        kv_cache_dtype="fp8",
    ),
    "KV cache beside NF4 weights": fitted({"weights": "nf4"}, quantization="nf4"),
}


OF_SEVEN_PAGES = (
    "a closed loop of equal lengths",
    "Poisson arrivals",
    "a bill",
    "a chain of EAGLE-3",
    "tensor parallelism",
    "a small model first",
    "KV cache in FP8 on two GPUs",
)
OF_MANY_SECONDS = (
    "4-bit weights on another card",
    "a fleet with a reserve over a day",
    "a fleet told apart by whole requests",
    "a closed loop that waits",
    "a tree of EAGLE-3",
    "what would help",
    "a closed loop of lengths as measured",
    "a draft model",
    "both models as one deployment",
    "a mixture of experts on four GPUs",
    "techniques in an order of one's own at a rate",
)
OF_THE_RUN = ("elapsed_s",)  # no number of the answer


@pytest.mark.parametrize("name", mostly_ci(QUESTIONS, OF_SEVEN_PAGES, OF_MANY_SECONDS))
def test_the_page_the_library_and_the_command_agree(
    dashboard: Open, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = QUESTIONS[name]
    opened = dashboard(question.page, **question.link)
    if question.press:
        opened.at.button(key=question.press).click().run()
        opened.settled()  # what is asked of the answer comes next
    opened.settled()
    asked = dict(question.asked)
    direct = json.loads(json.dumps(question.ask(asked.pop("model"), **asked).to_dict()))
    for label, shown in question.figures.items():
        assert opened.kpis[label] == shown(direct), label
    command = f"{opened.code('shell', question.copy)} --format json"
    by_command = json.loads(printed(command, monkeypatch, capsys))
    for clock in OF_THE_RUN:
        assert (by_command.pop(clock, None) is None) is (direct.pop(clock, None) is None)
    assert by_command == direct


def test_without_a_steady_state_no_latency_is_shown_and_the_verdict_says_why(dashboard: Open) -> None:
    opened = dashboard("estimate", **RATE, rate="60").settled()
    assert [opened.kpis[label] for label in ("TTFT", "TPOT", "E2E latency")] == ["-", "-", "-"]
    assert len(opened.refusals) == 1
    assert opened.refusals[0].startswith("overloaded")
    assert "the queue grows" in opened.refusals[0]


def test_a_ttft_is_shown_in_the_parts_that_the_library_gives(dashboard: Open) -> None:
    opened = dashboard("estimate", **LOOP, client="20", range="0").settled()
    direct = capacity.estimate(
        **LLAMA, **LENGTHS, concurrency=32, client_latency_s=0.02, random_range_ratio=0.0
    )
    drawn = next(
        json.loads(chart.proto.spec)
        for chart in opened.at.get("plotly_chart")
        if chart.proto.alt.startswith("client")
    )
    bars = {
        trace["name"].rpartition(" ")[0]: trace["x"][0] for trace in drawn["data"] if trace["type"] == "bar"
    }
    assert direct.ttft_parts_s is not None
    assert bars == {part: pytest.approx(s * 1e3) for part, s in direct.ttft_parts_s.items()}
    assert direct.ttft_s is not None
    assert sum(bars.values()) == pytest.approx(direct.ttft_s.value * 1e3)
    assert [
        str(badge.value)
        for badge in opened.at.markdown
        if "Identical lengths synchronise" in str(badge.value)
    ]


CHAT_SLO = ("ttft:p99:450ms", "tpot:p99:40ms")
TOO_MUCH = {"rate": "60", "range": "0"}


def shown_lines(opened: Any) -> list[str]:
    """Everything that the page states in a coloured line."""
    kinds = (opened.at.success, opened.at.info, opened.at.warning, opened.at.error)
    return [str(element.value) for kind in kinds for element in kind]


def test_the_start_page_counts_the_replicas_of_cost_and_plan_for_users(dashboard: Open) -> None:
    opened = dashboard("start")
    opened.at.text_area(key="question").set_value("chat, 2000 users").run()
    opened.settled()
    people = {"use_case": "chat", "users": 2000}
    needed = capacity.cost(**LLAMA, **PRICED, **people, slo=CHAT_SLO).needed
    assert needed is not None
    assert needed.within_slo is not None
    assert escape_markdown(replicas_text(needed)) in shown_lines(opened)
    plan = capacity.plan(
        "llama-3.1-8b",
        gpus=("h100-sxm-80gb",),
        slo=CHAT_SLO,
        tensor_parallel_sizes=1,
        quantizations="default",
        kv_cache_dtypes="auto",
        speculators="none",
        serving="aggregated",
        max_num_batched_tokens="default",
        alternatives=False,
        **people,
        **PRICED,
    )
    assert plan.best is not None
    assert plan.best.num_gpus == needed.within_slo.num_gpus


def test_an_overload_has_the_librarys_verdict_and_replicas_and_no_price_on_each_page(dashboard: Open) -> None:
    bill = capacity.cost(
        **LLAMA, **LENGTHS, **PRICED, request_rate=60.0, random_range_ratio=0.0, slo=SIDEBAR_SLO
    )
    assert bill.verdict == "overloaded"
    assert bill.needed is not None
    for page, more in (("cost", {}), ("estimate", RATE), ("simulate", {})):
        opened = dashboard(page, **TOO_MUCH, **more).settled().settled()
        lines = shown_lines(opened)
        assert any("overloaded" in line for line in lines), page
        assert escape_markdown(replicas_text(bill.needed)) in lines, page
        assert opened.kpis["$ per 1M output"] == "-", page
        below = {metric.label: metric.delta for metric in opened.at.metric}["$ per 1M output"]
        said, _, price = below.partition("; full load $")
        assert said == "overloaded", page
        assert float(price) == pytest.approx(bill.full.usd_per_million_output_tokens, rel=0.01), page


@pytest.mark.ci
def test_a_comparison_is_the_same_on_the_page_in_the_library_and_by_the_command(
    dashboard: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a closed loop; the Cost page's sidebar has the same SLO, and `cost` the same replicas and bill."""
    slo = ("ttft:p95:1000ms", "tpot:p95:12ms")  # met by few requests in flight, so that the search is short
    files = []
    for gpu in ("h100-sxm-80gb", "b200-sxm-180gb"):
        side = DeploymentFile(
            schema="capacity/deployment/v1",
            model="llama-3.1-8b",
            pools=(Pool(gpu=gpu),),
            traffic=Traffic(**LENGTHS, concurrency=48),
            cost=Cost(**PRICED),
        )
        files.append(str(tmp_path / f"{gpu}.toml"))
        write_deployment(side, files[-1])
    answer = capacity.compare_deployments(files, slo=slo)
    levels = " ".join(f"--slo {level}" for level in slo)
    command = f"capacity side-by-side {' '.join(files)} {levels} --format json"
    assert json.loads(printed(command, monkeypatch, capsys)) == json.loads(json.dumps(answer.to_dict()))
    opened = dashboard("deployments", deps_load="a closed loop", concurrency="48", slo_tpot="12").settled()
    assert opened.refusals == []
    assert escape_markdown(answer.verdict) in shown_lines(opened)
    needed = capacity.cost(**LLAMA, **LENGTHS, **PRICED, concurrency=48, slo=slo).needed
    assert needed is not None
    assert answer.sides[0].needed == needed.within_slo


VARIED = {  # lengths as links and as keywords say them
    "equal": ({"range": "0"}, {"random_range_ratio": 0.0}),
    "as measured": ({}, {}),
    "a range": ({"range": "0.8"}, {"random_range_ratio": 0.8}),
}


@pytest.mark.parametrize("lengths", mostly_ci(VARIED, ["as measured"]))
def test_every_page_and_verb_has_one_price_for_one_load(dashboard: Open, lengths: str) -> None:
    """Whatever few requests each of them draws: the pages' runs are of 120 and of 1,000."""
    link, varied = VARIED[lengths]
    asked: dict[str, Any] = {**LLAMA, **LENGTHS, **PRICED, **varied}
    price = capacity.estimate(**asked, request_rate=4.0).usd_per_million_output_tokens
    assert price is not None
    curve = capacity.curve(**asked, rates=(4.0,), replications=2, num_prompts=200)
    costs = [curve.points[0].cost]
    for requests in (120, 1000):
        load = {**asked, "request_rate": 4.0, "num_prompts": requests}
        costs += [
            capacity.simulate(**load).cost,
            capacity.cost(**load).served,
            capacity.estimate(**load).cost,
        ]
    for cost in costs:
        assert cost is not None
        assert cost.usd_per_million_output_tokens == pytest.approx(price.value, rel=1e-9)
    for page, more in (("cost", {"cost_requests": "120"}), ("estimate", RATE), ("simulate", {})):
        shown = dashboard(page, **{"rate": "4", **link, **more}).settled().kpis["$ per 1M output"]
        digits = len(shown.partition(".")[2])
        assert shown == f"${price.value:,.{digits}f}", page
        assert digits >= 2, page
