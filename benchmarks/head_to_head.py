"""Compare predictions of `capacity` with those of other public tools on the same measured servers.

    python benchmarks/head_to_head.py [--venv FOLDER] [--every N] [--write]

The tools: `capacity.estimate`; AISimulate from the package index, in an environment that the script makes in `--venv`;
a roofline of datasheet peaks; and the nearest other row of the same source. The rows: ML.ENERGY's leaderboard, and the
closed loops that third parties published, in the folder of reference data and in `capacity/answers/published_runs.csv`.
`--write` keeps the figures in `tests/data/head_to_head.json` and writes the tables of `docs/accuracy.md` from them.
Figures are aggregates: no row of a source is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ml_energy import CHAT_PROMPT, SAMPLING, held_out, model_name, published_pool
from reference_tables.form import read
from served_blind import read_rows as third_party_rows
from served_data import ROOT, shared_folder
from served_public import read_rows as judged_rows

import capacity
from capacity.answers.published_runs import REPLAYED, pool_fields
from capacity.base.errors import CapacityError
from capacity.deployment import Pool
from capacity.model import load_model
from capacity.pool.resolve import resolve

AISIMULATE = "0.13.0.dev202610270000000085"
FIGURES = ROOT / "tests" / "data" / "head_to_head.json"
PAGE = ROOT / "docs" / "accuracy.md"
MARKERS = ("<!-- made by benchmarks/head_to_head.py -->", "<!-- end of the head-to-head -->")

OURS, PLAIN, OTHER = "capacity", "capacity, sampling parameters not given", "AISimulate"
ROOFLINE, NEAREST = "roofline of the datasheet", "nearest other row of the source"
TOOLS = (OURS, PLAIN, OTHER, ROOFLINE, NEAREST)
LEADERBOARD, PUBLISHED = "ML.ENERGY leaderboard v3, lm-arena-chat", "closed loops of third parties"
DENSE_FITTED, DENSE_HELD_OUT = "dense, fitted configurations", "dense, held-out configurations"
EXPERTS, ALL = "experts", "all"
JUDGED, THIRD_PARTY = "judged (vLLM and SGLang, H200)", "documentation and blogs (vLLM)"
GROUPS = {LEADERBOARD: (DENSE_FITTED, DENSE_HELD_OUT, EXPERTS, ALL), PUBLISHED: (JUDGED, THIRD_PARTY, ALL)}

SYSTEMS = {"h100-sxm-80gb": "h100_sxm", "h200-sxm-141gb": "h200_sxm", "b200-sxm-180gb": "b200_sxm"}
TABLES = {
    "vllm": "0.24.0",
    "sglang": "0.5.14",
}  # its defaults; finding them takes it over a second for each question
KNOWN_TO_AISIMULATE = {  # the preset: the model with the same shapes whose config.json the wheel contains
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.3-nemotron-super-49b": "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "minimax-m2.5": "MiniMaxAI/MiniMax-M2.5",
    "nemotron-3-nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "qwen3-235b-a22b-2507": "Qwen/Qwen3-235B-A22B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-30b-a3b-2507": "Qwen/Qwen3-30B-A3B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
}
QUANTIZED = {
    ("qwen3-235b-a22b-2507", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("qwen3-235b-a22b-2507", "fp8-block"): "Qwen/Qwen3-235B-A22B-FP8",
    ("kimi-k2.5", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
}
ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "glm4_moe": "Glm4MoeForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured server: its launch as fields of `Pool`, its load in tokens and requests, and the measured figures.

    `tpot_ms` is the median inter-token latency for the leaderboard, the published TPOT for other sources.
    """

    source: str
    group: str
    model: str
    fields: Mapping[str, Any]
    concurrency: int
    input_len: int
    output_len: int
    tokens_per_s: float | None
    tpot_ms: float | None
    precision: str | None = None  # of the checkpoint, if the launch does not name a format

    @property
    def pool(self) -> Pool:
        """Return the launch."""
        return Pool.model_validate(dict(self.fields))

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs; no case has pipeline parallelism."""
        tensor, data = (int(self.fields.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "data"))
        return tensor * data


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prediction; `low` and `high` are the 90 % interval of the throughput, if the tool has one."""

    tokens_per_s: float
    tpot_ms: float
    low: float | None = None
    high: float | None = None


Answers = Sequence[Answer | None]


# the rows


def leaderboard_cases(measured: Path) -> list[Case]:
    """Return the servers of ML.ENERGY's leaderboard whose model has a preset."""
    table = read(measured, "ml_energy_v3_lm_arena")
    table = table.assign(held_out=held_out(table))
    cases = []
    for row in table.itertuples():
        try:
            model = load_model(model_name(row))
        except CapacityError:
            continue
        dense = DENSE_HELD_OUT if row.held_out else DENSE_FITTED
        cases.append(
            Case(
                source="ML.ENERGY",
                group=EXPERTS if model.is_moe else dense,
                model=model_name(row),
                fields=published_pool(row).model_dump(exclude_unset=True, exclude_none=True),
                concurrency=row.max_num_seqs,
                input_len=CHAT_PROMPT,
                output_len=round(row.avg_output_len),
                tokens_per_s=row.output_throughput_tokens_per_sec,
                tpot_ms=row.median_itl_ms,
                precision="fp8" if row.weight_precision == "fp8" else None,
            )
        )
    return cases


def published_cases(shared: Path) -> list[Case]:
    """Return the closed loops of single engines on a GPU that AISimulate has tables for: judged rows, then vLLM's."""
    rows = [(JUDGED, row) for row in judged_rows(shared)]
    rows += [(THIRD_PARTY, row) for row in third_party_rows() if row["engine"].startswith("vllm")]
    cases = []
    for group, row in rows:
        fields = pool_fields(row)
        if not row["concurrency"] or row["counted"] == REPLAYED or "replicas" in fields:
            continue
        try:
            pool = Pool.model_validate(fields)
            resolved = resolve(row["model"], pool)
        except CapacityError:
            continue
        if resolved.profile.name in SYSTEMS:
            cases.append(
                Case(
                    source=row["source"],
                    group=group,
                    model=resolved.model.name,
                    fields=pool.model_dump(exclude_unset=True),
                    concurrency=int(row["concurrency"]),
                    input_len=int(row["input_len"]),
                    output_len=int(row["output_len"]),
                    tokens_per_s=float(row["output_tok_s"]) if row["output_tok_s"] else None,
                    tpot_ms=float(row["tpot_ms"]) if row["tpot_ms"] else None,
                )
            )
    return cases


# the tools


def ask_capacity(case: Case, *, sampling: bool = True) -> Answer | None:
    """Return what `capacity.estimate` predicts; `sampling`: with the sampling parameters of the requests."""
    fields = {name: value for name, value in case.fields.items() if sampling or name not in SAMPLING}
    try:
        answer = capacity.estimate(
            case.model,
            **fields,
            input_len=case.input_len,
            output_len=case.output_len,
            concurrency=case.concurrency,
        )
    except CapacityError:
        return None
    rate, tpot = answer.output_tokens_per_s, answer.tpot_s
    if tpot is None:
        return None
    return Answer(tokens_per_s=rate.value, tpot_ms=1e3 * tpot.value, low=rate.low, high=rate.high)


def ask_roofline(case: Case) -> Answer:
    """Return bytes over bandwidth or operations over peak, the larger one, split over the GPUs without loss."""
    resolved = resolve(case.model, case.pool)
    model, scheme, gpu, batch = resolved.model, resolved.scheme, resolved.profile, case.concurrency
    weights = 0.0
    for part in model.parameter_parts():
        used = share_of_experts_used(case.model, batch) if part.kind == "experts" else 1.0
        weights += used * scheme.part_bytes(part) * (part.kind != "embedding")
    context = case.input_len + case.output_len / 2
    kv = batch * context * model.kv_bytes_per_token(resolved.pool.kv_cache_dtype)
    matrices = scheme.experts if model.is_moe else scheme.dense_ffn
    peak = gpu.dense_flops_per_s[matrices.compute_dtype]
    per_token = 2 * model.active_params / peak / case.num_gpus
    step = max((weights + kv) / gpu.hbm_bytes_per_s / case.num_gpus, batch * per_token)
    tpot = step + batch * case.input_len * per_token / case.output_len
    return Answer(tokens_per_s=batch / tpot, tpot_ms=1e3 * tpot)


@cache
def share_of_experts_used(model: str, batch: int) -> float:
    """Return the expected share of routed experts that `batch` tokens select, if each selects at random."""
    ffn = next(group.feed_forward for group in load_model(model).layer_groups if group.is_moe)
    return 1 - (1 - ffn.experts_per_token / ffn.num_experts) ** batch  # type: ignore[attr-defined]


def ask_nearest(case: Case, cases: Sequence[Case]) -> Answer | None:
    """Return the rate for each request in flight, and the token time, of the nearest other row of the source."""
    others = [other for other in cases if other is not case and other.source == case.source]
    others = [other for other in others if other.tokens_per_s and other.tpot_ms]
    if not others:
        return None
    near = min(others, key=lambda other: _distance(case, other))
    assert near.tokens_per_s is not None
    assert near.tpot_ms is not None
    return Answer(tokens_per_s=near.tokens_per_s * case.concurrency / near.concurrency, tpot_ms=near.tpot_ms)


def _distance(one: Case, other: Case) -> float:
    """Return 1 for each doubling of a size, 0.5 for another model, 1 for another GPU, 2 for experts and dense."""
    names = 0.5 * (one.model != other.model) + (one.fields["gpu"] != other.fields["gpu"])
    names += 2 * (_params_and_kind(one.model)[1] != _params_and_kind(other.model)[1])
    return names + math.dist(_sizes(one), _sizes(other))


@cache
def _params_and_kind(model: str) -> tuple[int, bool]:
    """Return the active parameters, and whether the model is a mixture of experts."""
    spec = load_model(model)
    return spec.active_params, spec.is_moe


def _sizes(case: Case) -> tuple[float, ...]:
    active, _ = _params_and_kind(case.model)
    return tuple(map(math.log2, (active, case.num_gpus, case.concurrency, case.input_len, case.output_len)))


# AISimulate


def make_environment(folder: Path) -> Path:
    """Return the Python of an environment with AISimulate; it is made on the first call, with pip."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import importlib.metadata as m; print(m.version('aisimulate'))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True) if python.exists() else None
    if found is None or found.stdout.strip() != AISIMULATE:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-q", "--pre", "--only-binary", ":all:"]
        subprocess.run([*install, f"aisimulate=={AISIMULATE}"], check=True)
    return python


def aisimulate_question(case: Case, configs: Path) -> dict[str, Any]:
    """Return the arguments of `cli_estimate`; a model that the wheel does not have is written to `configs`."""
    resolved = resolve(case.model, case.pool)
    pool, engine, model = case.pool, resolved.engine.name.split("@")[0], resolved.model.name
    precision = pool.quantization or case.precision
    path = QUANTIZED.get((model, precision or ""))
    formats = {} if path or precision is None else {"gemm_quant_mode": precision, "moe_quant_mode": precision}
    path = path or KNOWN_TO_AISIMULATE.get(model) or write_config(model, configs)
    split = {}
    if resolved.model.is_moe:
        split["moe_ep_size" if pool.enable_expert_parallel else "moe_tp_size"] = pool.tensor_parallel_size
    return {
        "model_path": path,
        "system_name": SYSTEMS[resolved.profile.name],
        "backend_name": engine,
        "backend_version": TABLES[engine],
        "isl": case.input_len,
        "osl": case.output_len,
        "batch_size": case.concurrency,
        "tp_size": pool.tensor_parallel_size,
        "attention_dp_size": pool.data_parallel_size,
        "kvcache_quant_mode": "fp8" if pool.kv_cache_dtype == "fp8" else "bfloat16",
        **split,
        **formats,
    }


def write_config(model: str, folder: Path) -> str:
    """Write the preset's `config.json` with the name of its architecture; return its folder."""
    preset = json.loads((ROOT / "capacity/model/presets" / f"{model}.json").read_text(encoding="utf-8"))
    config = preset["config"]
    own = folder / model
    own.mkdir(exist_ok=True, parents=True)
    named = {"architectures": [ARCHITECTURES[config["model_type"]]], **config}
    (own / "config.json").write_text(json.dumps(named), encoding="utf-8")
    return str(own)


def ask_aisimulate(cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """Return AISimulate's answers as `ask_aisimulate.py` writes them; answers are kept in `folder`."""
    python, kept = make_environment(folder), folder / f"answers-{AISIMULATE}.jsonl"
    questions = [aisimulate_question(case, folder / "configs") for case in cases]
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "questions.json"
        asked.write_text(json.dumps(questions), encoding="utf-8")
        script = Path(__file__).with_name("ask_aisimulate.py")
        subprocess.run([python, script, asked, kept], check=True, env={**os.environ, "PYTHONPATH": ""})
    lines = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    by_question = {json.dumps(line["question"], sort_keys=True): line for line in lines}
    return [by_question[json.dumps(question, sort_keys=True)] for question in questions]


def reason(error: str) -> str:
    """Return the class of an error of AISimulate."""
    if error.startswith("OOM"):
        return "out of memory"
    return "architecture not supported" if "architecture" in error else "no kernel table"


# figures


@dataclass(frozen=True, slots=True)
class Timed:
    """The answers of a tool in the order of the cases, and its CPU seconds for each."""

    answers: Answers
    seconds: float


def timed(ask: Callable[[Case], Answer | None], cases: Sequence[Case]) -> Timed:
    """Ask one of the tools of this process."""
    before = time.process_time()
    answers = [ask(case) for case in cases]
    return Timed(answers, (time.process_time() - before) / len(cases))


def own_tools(cases: Sequence[Case]) -> dict[str, Timed]:
    """Return the answers of all tools that need no other environment."""
    asked: dict[str, Callable[[Case], Answer | None]] = {
        OURS: ask_capacity,
        ROOFLINE: ask_roofline,
    }
    if len({case.source for case in cases}) == 1:
        asked[NEAREST] = lambda case: ask_nearest(case, cases)
    if any(name in case.fields for case in cases for name in SAMPLING):
        asked[PLAIN] = lambda case: ask_capacity(case, sampling=False)
    return {tool: timed(ask, cases) for tool, ask in asked.items()}


def error(case: Case, answer: Answer, figure: str) -> float | None:
    """Return the absolute relative error of one figure; None if it was not measured."""
    measured = getattr(case, figure)
    return None if measured is None else abs(getattr(answer, figure) / measured - 1)


def figures_of(
    cases: Sequence[Case], tools: Mapping[str, Timed], refused: Mapping[int, str], groups: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of every tool over the rows that all tools answer, by group of rows.

    `refused`: rows that AISimulate refuses, with the class of the reason.
    """
    complete = [
        number
        for number in range(len(cases))
        if number not in refused and all(tool.answers[number] for tool in tools.values())
    ]
    found: dict[str, Any] = {}
    for name, tool in tools.items():
        by_group = {}
        for group in groups:
            rows = [number for number in complete if group in (ALL, cases[number].group)]
            by_group[group] = _figures(cases, tools, name, rows)
        answered = len(cases) - len(refused) if name == OTHER else sum(map(bool, tool.answers))
        found[name] = {"answered": answered, "seconds": round(tool.seconds, 5), "groups": by_group}
    apart = [number for number in refused if tools[OURS].answers[number]]
    return {
        "rows": len(cases),
        "refused": {str(number): why for number, why in refused.items()},
        "tools": found,
        "ours on refused rows": _figures(cases, tools, OURS, apart),
    }


def _figures(
    cases: Sequence[Case], tools: Mapping[str, Timed], name: str, rows: Sequence[int]
) -> dict[str, Any]:
    answers = tools[name].answers
    found: dict[str, Any] = {"rows": len(rows)}
    for figure in ("tokens_per_s", "tpot_ms"):
        errors = [_error(cases, answers, number, figure) for number in rows]
        known = [each for each in errors if each is not None]
        if known:
            found[figure] = [round(float(np.quantile(known, share)), 4) for share in (0.5, 0.9)]
        found[f"{figure} rows"] = len(known)
    for rival in (OURS, PLAIN):
        if rival in tools and name not in (OURS, PLAIN):
            pairs = [
                (_main_error(cases, answers, n), _main_error(cases, tools[rival].answers, n)) for n in rows
            ]
            found[f"closer than {rival}"] = sum(own < theirs for own, theirs in pairs)
    bounded = [(cases[n].tokens_per_s, a) for n in rows if (a := answers[n]) and a.low is not None]
    if bounded and all(measured is not None for measured, _ in bounded):
        inside = sum(a.low <= measured <= a.high for measured, a in bounded)
        found["inside"] = round(inside / len(bounded), 4)
    return found


def _error(cases: Sequence[Case], answers: Answers, number: int, figure: str) -> float | None:
    answer = answers[number]
    return None if answer is None else error(cases[number], answer, figure)


def _main_error(cases: Sequence[Case], answers: Answers, number: int) -> float:
    """Return the error of the throughput, or of the token time where no throughput was measured."""
    rate = _error(cases, answers, number, "tokens_per_s")
    found = _error(cases, answers, number, "tpot_ms") if rate is None else rate
    assert found is not None
    return found


# the page


def render(figures: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    text = [
        f"Made on {figures['date']} with capacity {figures['capacity']} and AISimulate {figures['aisimulate']}, whose "
        f"tables were those of {figures['tables']}."
    ]
    for name, found in figures["sets"].items():
        groups = GROUPS[name]
        ours = found["tools"][OURS]
        counts = [ours["groups"][group]["rows"] for group in groups]
        columns = [f"{group} ({count})" for group, count in zip(groups, counts, strict=True)]
        text += ["", f"**{name}**, errors of output tokens/s, median / p90:", ""]
        text += ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
        for tool in TOOLS:
            if tool in found["tools"]:
                own = found["tools"][tool]["groups"]
                text.append(f"| {tool} | " + " | ".join(_pair(own[g], "tokens_per_s") for g in groups) + " |")
        token_time = "inter-token latency" if name == LEADERBOARD else "TPOT"
        headings = ["", "answers", f"{token_time}, median / p90", "closer than capacity"]
        if PLAIN in found["tools"]:
            headings.append("closer than capacity without sampling parameters")
        headings += ["in the 90 % interval", "CPU time per answer"]
        text += ["", "| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
        text += [_line(found, tool) for tool in TOOLS if tool in found["tools"]]
        if found["refused"]:
            reasons = Counter(found["refused"].values())
            named = ", ".join(f"{why} {count}" for why, count in sorted(reasons.items()))
            apart = found["ours on refused rows"]
            text += [
                "",
                f"AISimulate refuses {sum(reasons.values())} of {found['rows']} rows ({named}). On those, capacity's "
                f"throughput error is {_pair(apart, 'tokens_per_s')}.",
            ]
    return "\n".join(text) + "\n"


def _line(found: Mapping[str, Any], tool: str) -> str:
    own, every = found["tools"][tool], found["tools"][tool]["groups"][ALL]
    rows, ours = every["rows"], found["tools"][OURS]["seconds"]
    cells = [tool, f"{own['answered']} of {found['rows']}", _pair(every, "tpot_ms")]
    for rival in (OURS, PLAIN):
        if rival in found["tools"]:
            closer = every.get(f"closer than {rival}")
            cells.append("" if closer is None else f"{closer} of {rows}")
    cells.append(f"{every['inside']:.0%}" if "inside" in every else "none")
    times = own["seconds"] / ours
    cells.append(f"{times:.1g} ×")
    return "| " + " | ".join(cells).strip() + " |"


def _pair(found: Mapping[str, Any], figure: str) -> str:
    if figure not in found:
        return ""
    median, p90 = found[figure]
    return f"{100 * median:.0f} / {100 * p90:.0f} %"


def page_with(page: str, tables: str) -> str:
    """Return the page with these tables between its markers."""
    before, rest = page.split(MARKERS[0])
    return before + MARKERS[0] + "\n\n" + tables + "\n" + MARKERS[1] + rest.split(MARKERS[1])[1]


def compare(cases: Sequence[Case], groups: Sequence[str], folder: Path) -> tuple[dict[str, Any], set[str]]:
    """Return the figures of all tools, and the tables that AISimulate used."""
    asked = ask_aisimulate(cases, folder)
    refused = {number: reason(line["error"]) for number, line in enumerate(asked) if "error" in line}
    answers = [
        None if "error" in line else Answer(tokens_per_s=line["tokens_per_s"], tpot_ms=line["tpot_ms"])
        for line in asked
    ]
    seconds = sum(line["seconds"] for line in asked) / len(asked)
    tools = {**own_tools(cases), OTHER: Timed(answers, seconds)}
    tables = {line["tables"] for line in asked if "tables" in line}
    return figures_of(cases, tools, refused, groups), tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capacity" / "head-to-head"
    parser.add_argument(
        "--venv", type=Path, default=default, help=f"folder of the other tool (default {default})"
    )
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--write", action="store_true", help="write the figures and the page")
    options = parser.parse_args(arguments)
    shared = shared_folder()
    if shared is None:
        print("no reference data: set CAPACITY_SHARED", file=sys.stderr)
        return 2
    if options.write and options.every > 1:
        print("--write needs every row: omit --every", file=sys.stderr)
        return 2
    rows = {
        LEADERBOARD: leaderboard_cases(shared / "reference" / "measured"),
        PUBLISHED: published_cases(shared),
    }
    sets, tables = {}, set()
    try:
        for name, cases in rows.items():
            sets[name], used = compare(cases[:: options.every], GROUPS[name], options.venv)
            tables |= used
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"AISimulate {AISIMULATE} in {options.venv} does not run: {problem}", file=sys.stderr)
        return 2
    figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "capacity": version("llm-capacity"),
        "aisimulate": AISIMULATE,
        "tables": " and ".join(sorted(tables)),
        "sets": sets,
    }
    print(render(figures))
    if options.write:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), render(figures)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
