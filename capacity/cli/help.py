"""The help of a verb: `--help`, one screen of flags that people use and examples; `--help-all`, every flag by group.

Neither cuts a name. Which flags and examples stand on the first page is `PAGES`, and a test runs them.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer
import typer.core

MOST_WIDTH = 110
FEW = 12  # flags that fit on the first page, all of them
COLUMN = 36  # of flags; a longer one has a line of its own


@dataclass(frozen=True, slots=True)
class Page:
    """What a verb shows first: `flags` by their names, in this order, and `examples`, without `capacity`."""

    flags: str
    examples: tuple[str, ...]


ENGINE = "gpu tensor-parallel-size quantization kv-cache-dtype engine max-model-len"
LENGTHS = "input-len output-len"
LOAD = f"{LENGTHS} request-rate concurrency use-case num-prompts trace"
LLAMA = "llama-3.1-70b --gpu h100 -tp 4"
CHAT = "--input-len 1024 --output-len 256"

PAGES = {
    "fit": Page(
        f"{ENGINE} gpu-memory-utilization from-launch download format",
        (
            "fit gpt-oss-120b --gpu h200",
            "fit llama-3.1-70b --gpu a100 -tp 2 -q awq --max-model-len 32k",
            "fit --from-launch 'vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384' --gpu l4",
        ),
    ),
    "estimate": Page(
        f"{ENGINE} {LENGTHS} concurrency request-rate use-case users slo batch-size price-tier detail format",
        (
            f"estimate {LLAMA} {CHAT} --concurrency 32 --price-tier on-demand",
            f"estimate llama-3.1-8b --gpu l4 -q fp8 {CHAT} --request-rate 0.5",
            "estimate qwen3-32b --gpu h200 --input-len 8192 --output-len 500 --batch-size 16 --format json",
        ),
    ),
    "explain": Page(
        f"{ENGINE} {LENGTHS} concurrency request-rate batch-size interval format",
        (
            f"explain {LLAMA} {CHAT} --concurrency 32",
            f"explain {LLAMA} {CHAT} --concurrency 32 --interval",
            "explain ttft",
            f"explain goodput {LLAMA} {CHAT} --concurrency 32",
        ),
    ),
    "frontier": Page(
        f"gpus quantizations engines tensor-parallel-sizes {LENGTHS} loads tpot price-tier chart detail format",
        (
            f"frontier llama-3.1-70b --gpus h100,h200,b200 --quantizations default,fp8 {CHAT} --price-tier on-demand",
            f"frontier llama-3.1-8b --gpus h100,l40s {CHAT} --tpot 20 --chart frontier.html",
        ),
    ),
    "simulate": Page(
        f"{ENGINE} {LOAD} replicas slo goodput records detail format",
        (
            f"simulate llama-3.1-8b --gpu h100 {CHAT} --request-rate 12 --num-prompts 500 --slo ttft:p95:200ms",
            f"simulate {LLAMA} {CHAT} --concurrency 32 --num-prompts 320",
            "simulate llama-3.1-8b --gpu h100 --replicas 4 --router prefix-aware --trace requests.csv",
        ),
    ),
    "quantize": Page(
        "gpu tensor-parallel-size engine input-len output-len large-batch method list price-tier format",
        (
            "quantize llama-3.1-70b --gpu h100 -tp 4",
            "quantize llama-3.1-8b --gpu l4 --method awq-int4 --method fp8-tensor",
            "quantize --list",
        ),
    ),
    "speculate": Page(
        "gpu tensor-parallel-size engine method draft-tokens context-tokens batches textbook list format",
        (
            "speculate llama-3.1-70b --gpu h100 -tp 4",
            "speculate llama-3.1-70b --gpu h100 -tp 4 --method draft-model --draft llama-3.2-1b --acceptance 0.8",
            "speculate --list",
        ),
    ),
    "scale": Page(
        "gpu tensor-parallel-size engine input-len output-len concurrency axis most-gpus tpot price-tier format",
        (
            "scale llama-3.1-70b --gpu h100",
            "scale deepseek-v3 --gpu h200 -tp 8 --axis expert",
            "scale llama-3.1-8b --gpu l4 --axis pipeline --most-gpus 4",
        ),
    ),
    "attention-io": Page(
        "gpu contexts tensor-parallel-size format",
        ("attention-io llama-3.1-8b --gpu h100", "attention-io llama-2-7b --gpu a100 --contexts 4K,32K,128K"),
    ),
    "beam-search": Page(
        f"gpu beam-widths {LENGTHS} batch-size tensor-parallel-size engine format",
        (
            "beam-search llama-3.1-8b --gpu h100",
            "beam-search llama-3.1-8b --gpu h100 --beam-widths 1,4 --batch-size 32",
        ),
    ),
    "batching": Page(
        f"gpu tensor-parallel-size engine {LENGTHS} request-rate num-prompts batch-size spread format",
        (
            f"batching llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --num-prompts 300",
            "batching llama-3.1-8b --gpu h100 --input-len 512 --output-len 256 --length-distribution lognormal "
            "--request-rate 5 --num-prompts 200",
        ),
    ),
    "charts": Page(
        "gpu tensor-parallel-size quantization engine output",
        ("charts llama-3.1-8b --gpu h100 --output charts",),
    ),
    "plan": Page(
        f"slo {LENGTHS} request-rate use-case users trace gpus quantizations engines objective price-tier "
        "time-limit-s output detail format",
        (
            f"plan llama-3.1-8b {CHAT} --request-rate 20 --slo ttft:p95:500ms --slo tpot:p95:50ms "
            "--gpus h100,l40s --price-tier on-demand",
            "plan llama-3.1-8b --use-case chat --users 500 --gpus h100,l40s --price-tier on-demand",
            "plan llama-3.1-70b --trace requests.csv --slo ttft:p95:1s --price-tier on-demand --output plan",
        ),
    ),
    "fleet": Page(
        f"slo {LENGTHS} request-rate trace gpus short-gpus long-gpus split-at price-tier spare-replicas "
        "peak-to-mean output format",
        (
            f"fleet llama-3.1-8b {CHAT} --length-distribution lognormal --request-rate 40 --slo ttft:p99:500ms "
            "--gpus l4,l40s,h100 --price-tier on-demand",
            "fleet llama-3.1-8b --trace requests.csv --slo ttft:p95:1s --split-at 1024,4096 --short-gpus l40s "
            "--long-gpus h100 --price-tier on-demand --output fleet.toml",
        ),
    ),
    "cost": Page(
        f"gpu tensor-parallel-size quantization {LOAD} users slo price-tier api format",
        (
            f"cost {LLAMA} {CHAT} --request-rate 4 --price-tier on-demand",
            f"cost {LLAMA} {CHAT} --request-rate 4 --price-tier on-demand --api all",
        ),
    ),
    "cascade": Page(
        f"small escalation-rate cache-hit-rate small-gpu api gpu tensor-parallel-size {LENGTHS} request-rate "
        "price-tier format",
        (
            f"cascade {LLAMA} --small llama-3.1-8b --escalation-rate 0.3 {CHAT} --request-rate 20 "
            "--price-tier on-demand",
            f"cascade {LLAMA} --cache-hit-rate 0.2 {CHAT} --request-rate 20 --price-tier on-demand",
        ),
    ),
    "curve": Page(
        f"gpu tensor-parallel-size quantization engine {LENGTHS} trace slo rates replicas output format",
        (
            f"curve llama-3.1-8b --gpu h100 {CHAT} --slo ttft:p95:500ms --slo tpot:p95:50ms",
            f"curve llama-3.1-8b --gpu h100 {CHAT} --slo ttft:p95:500ms --requests-per-user-hour 12",
        ),
    ),
    "tornado": Page(
        f"{ENGINE} {LOAD} price-tier format",
        (f"tornado llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --price-tier on-demand",),
    ),
    "advise": Page(
        f"{ENGINE} {LOAD} price-tier format",
        (f"advise llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --price-tier on-demand",),
    ),
    "stack": Page(
        f"{ENGINE} {LOAD} price-tier order format",
        (
            f"stack llama-3.1-8b --gpu h100 {CHAT} --concurrency 32",
            f"stack llama-3.1-8b --gpu h100 {CHAT} --concurrency 32 --order bf16,kv-cache,static-batching",
        ),
    ),
    "compare": Page(
        f"gpu tensor-parallel-size quantization engine {LENGTHS} request-rate concurrency model server-log deployment "
        "fit-overheads format",
        (
            "compare result.json --gpu h100 -tp 4",
            "compare result.json --gpu h100 --server-log vllm.log --fit-overheads",
        ),
    ),
    "kv": Page("", ("kv llama-3.1-70b", "kv llama-3.1-70b deepseek-v3 gpt-oss-120b --contexts 8K,128K")),
    "cache-curve": Page("", ("cache-curve requests.jsonl", "cache-curve requests.jsonl --replicas 8")),
    "engines": Page(
        f"compare gpu engines tensor-parallel-size quantization {LENGTHS} concurrency request-rate claims format",
        (
            "engines --gpu b200",
            "engines --compare llama-3.1-8b --gpu h100 --isl 1000 --osl 200 --concurrency 32",
        ),
    ),
    "diff": Page(
        f"{ENGINE} replications seed deployment from-launch format",
        (
            "diff now.toml then.toml --replications 5",
            "diff --deployment now.toml -q fp8",
        ),
    ),
    "sweep": Page(
        "", ("sweep sweep.toml --store results", "sweep sweep.toml --store results --export points.csv")
    ),
    "from-launch": Page(
        "",
        (
            "from-launch 'vllm serve Qwen/Qwen3-32B -tp 2' --gpu h100 --output deployment.toml",
            "from-launch 'text-generation-launcher --model-id Qwen/Qwen3-32B --num-shard 2' --gpu h100",
        ),
    ),
    "from-vllm": Page(
        "", ("from-vllm 'vllm serve Qwen/Qwen3-32B -tp 2' --gpu h100 --output deployment.toml",)
    ),
    "schedule": Page("", ("schedule scenario.json --format table",)),
    "validate": Page(
        "device campaign budget out gpu engine model deployment from-launch format",
        (
            "validate --device cpu --campaign quick --budget 60s",
            "validate --engine vllm --deployment now.toml",
        ),
    ),
    "calibrate": Page(
        f"gpu tensor-parallel-size quantization engine {LENGTHS} request-rate concurrency model name suggest format",
        (
            "calibrate result.json --gpu h100 -tp 4",
            f"calibrate --suggest {LLAMA} {CHAT} --request-rate 4",
            "calibrate measurements --name h100-mine",
        ),
    ),
    "dashboard": Page("", ("dashboard", "dashboard --port 8600")),
    "models": Page("", ("models",)),
    "gpus": Page("", ("gpus",)),
    "use-cases": Page("", ("use-cases", "use-cases --format json")),
    "schema": Page("", ("schema", "schema estimate")),
}


class VerbCommand(typer.core.TyperCommand):
    """A verb with two pages of help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, unless every flag is asked for."""
        if "--help-all" in args:
            typer.echo("\n".join(_everything(self, ctx)))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The first page."""
        formatter.write("\n".join(_first_page(self, ctx)))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MOST_WIDTH)


def _options(command: VerbCommand, ctx: Any) -> list[Any]:
    return [p for p in command.get_params(ctx) if p.param_type_name == "option" and p.name != "help"]


def _first_page(command: VerbCommand, ctx: Any) -> Iterator[str]:
    yield from _head(command, ctx)
    options = _options(command, ctx)
    page = PAGES.get(command.name or "")
    named = page.flags.split() if page else []
    by_flag = {flag.removeprefix("--"): option for option in options for flag in option.opts}
    chosen = [by_flag[name] for name in named if name in by_flag] if len(options) > FEW else options
    for option in chosen:
        yield from _rows(_spelled(option, shortest=True), _first_clause(option.help or ""))
    if page and page.examples:
        yield ""
        for example in page.examples:
            yield from textwrap.wrap(f"capacity {example}", _width() - 2, **_HANGING)
    yield ""
    left = len(options) - len(chosen)
    yield from textwrap.wrap(_further(command, left), _width())


_HANGING: dict[str, Any] = {
    "initial_indent": "  ",
    "subsequent_indent": "      ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def _further(command: VerbCommand, left: int) -> str:
    """Where there is more to read."""
    if left:
        return f"`capacity {command.name} --help-all` shows {left} more flags."
    return f"`capacity explain TERM` explains a word, `capacity schema {command.name}` the JSON of `--format json`."


def _everything(command: VerbCommand, ctx: Any) -> Iterator[str]:
    yield from _head(command, ctx)
    groups: dict[str, list[Any]] = {}
    for option in _options(command, ctx):
        groups.setdefault(option.rich_help_panel or "", []).append(option)
    for group, options in groups.items():
        yield from ((f"{group}:",) if group else ())
        for option in options:
            yield from _rows(_spelled(option), f"{option.help or ''}{_default(option)}")
        yield ""


def _head(command: VerbCommand, ctx: Any) -> Iterator[str]:
    arguments: list[Any] = [p for p in command.get_params(ctx) if p.param_type_name == "argument"]
    names = " ".join(f"[{a.name.upper()}]" if not a.required else a.name.upper() for a in arguments)
    yield f"capacity {command.name} {names}{' ' if names else ''}[flags]"
    yield ""
    yield from textwrap.wrap(command.help or "", _width())
    yield ""
    for argument in arguments:
        if argument.help:
            yield from _rows(argument.name.upper(), _first_clause(argument.help))


def _spelled(option: Any, *, shortest: bool = False) -> str:
    """All its spellings, short ones first, and what it takes; `shortest`: one long and one short."""
    spellings = sorted((*option.opts, *option.secondary_opts), key=lambda flag: flag.startswith("--"))
    if shortest:
        short = [flag for flag in spellings if not flag.startswith("--")]
        spellings = [*short[:1], next(flag for flag in option.opts if flag.startswith("--"))]
    if option.is_flag:
        return ", ".join(spellings)
    return f"{', '.join(spellings)} {_taken(option)}"


def _taken(option: Any) -> str:
    """What a flag takes: the type that its field declares, or that of its own parameter."""
    annotation = option.type_descriptor.annotation
    named = str(option.metavar or getattr(annotation, "__name__", "str"))
    words = {"str": "TEXT", "int": "N", "float": "X", "list": "TEXT"}
    if named == "str" and re.search(r"\b(file|folder)\b", option.help or ""):
        return "PATH"
    return words.get(named, named.upper())


def _default(option: Any) -> str:
    default = option.default
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f" [default: {default}]" if option.show_default and plain and default != "" else ""


def _first_clause(text: str) -> str:
    """The beginning of a help text that stands alone."""
    found = re.match(r"(.{12,}?)(?:;|(?<!\.)\.(?!\.)(?:\s|$)| \()", text)
    return (found[1] if found else text).removesuffix(", ...").rstrip(".") + "."


def _rows(left: str, text: str) -> Iterable[str]:
    """A flag and its help beside it, or below where the flag is long."""
    width = _width()
    lines: Sequence[str] = textwrap.wrap(text, width - COLUMN, break_on_hyphens=False) or [""]
    if len(left) + 4 > COLUMN:
        yield f"  {left}"
        yield from (" " * COLUMN + line for line in lines)
        return
    yield f"  {left:{COLUMN - 2}}{lines[0]}"
    yield from (" " * COLUMN + line for line in lines[1:])
