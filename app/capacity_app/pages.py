"""The pages, in the order of the menu. A page of its own is a script in `app_pages/` and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from capacity.base.registry import BY_NAME
from capacity_app.state import ENGINE, LENGTHS, LEVELS, MODEL, PRICE, VARIATION, chosen
from capacity_app.traffic import ARRIVALS, CLOSED_LOOP, TOGETHER_AT_ONCE, TRACE

FOLDER = Path(__file__).parent / "app_pages"
QUESTION = MODEL | ENGINE
IMPROVE, FLEETS, EVIDENCE = "Improve", "Fleets", "Evidence"  # sections of the menu
TOGETHER, LOOP, RATE = "a batch together", "a closed loop", "arrivals at a rate"  # of the Estimate page
THIS_LOAD, OVER_LOADS, EVERY_GPU = "this load", "over the load", "every GPU"  # its views
EVERY_ENGINE, FRONTIER, TYPING = "every engine", "frontier", "typing"
OWN_GPUS, HOSTED = "GPUs of the sidebar", "an API"  # of the page of cascades
KV_POOL = (
    "gpu",
    "tensor_parallel_size",
    "quantization",
    "kv_cache_dtype",
    "engine",
)  # what its page asks of a pool
AS_SIDEBAR = "as in the sidebar"
FLEET_SHAPES = ("lognormal", "gamma")  # of the lengths that a fleet's page splits
# of the page that compares
AS_FILE, AT_RATE, AT_CONCURRENCY = "as recorded", "by requests/s", "by concurrency"


@dataclass(frozen=True)
class PageEntry:
    """`name` is the script's name and the page's path in the URL; pages of a `section` share a menu.

    `reads` gives the keys of the sidebar that its answer depends on, which may hang on a choice of the page. `verb` is
    the one of the command line whose help the page has, `said` that of a page without one.
    """

    name: str
    title: str
    icon: str
    reads: Callable[[], Set[str]]
    section: str = ""
    verb: str = ""
    said: str = ""

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / f"{self.name}.py"

    @property
    def help(self) -> str:
        """What it is for."""
        return self.said or BY_NAME[self.verb or self.name].help.partition("\n")[0]


def _estimate_reads() -> Set[str]:
    load = {LOOP: VARIATION | {"concurrency"}, RATE: VARIATION | LEVELS | {"rate"}}
    read = QUESTION | LENGTHS | PRICE | {"client", "time"} | load.get(chosen("load", TOGETHER), frozenset())
    return read | VARIATION if chosen("view", "") == FRONTIER else read


def _simulate_reads() -> Set[str]:
    read = QUESTION | PRICE | LEVELS | {"client", "time"}
    arrivals = chosen("sim_arrivals", ARRIVALS[0])
    if arrivals == TRACE:
        return read
    load = {CLOSED_LOOP: {"concurrency"}, TOGETHER_AT_ONCE: set()}.get(arrivals, {"rate"})
    return read | LENGTHS | VARIATION | load


def _compare_reads() -> Set[str]:
    arrivals = {AT_RATE: {"rate"}, AT_CONCURRENCY: {"concurrency"}}
    read = QUESTION | arrivals.get(chosen("cmp_arrivals", AS_FILE), set())
    return read | LENGTHS | VARIATION if _is_on("cmp_lengths") else read


def _stack_reads() -> Set[str]:
    load = {"rate"} if chosen("stack_load", LOOP) == RATE else {"concurrency"}
    return QUESTION | LENGTHS | VARIATION | PRICE | load | {"client", "time"}


def _fleet_reads() -> Set[str]:
    return SEARCHED if chosen("fleet_lengths", AS_SIDEBAR) == AS_SIDEBAR else SEARCHED - VARIATION


def _cascade_reads() -> Set[str]:
    read = MODEL | LENGTHS | VARIATION | PRICE | {"rate", "client"}
    if chosen("casc_on", OWN_GPUS) == OWN_GPUS:
        return read | ENGINE | {"time"}
    return read | ({"gpu", "time"} if _is_on("casc_small", "true") else set())


def _cache_reads() -> Set[str]:
    return MODEL | {"gpu", "tp"} if _is_on("cache_saves") else frozenset()


def _is_on(switch: str, usual: str = "") -> bool:
    return chosen(switch, usual) in ("true", "True")


SERVED = QUESTION | LENGTHS | VARIATION | {"rate", "client", "time"}
SEARCHED = MODEL | LENGTHS | VARIATION | PRICE | {"engine", "rate", "client"}
FORMATS = QUESTION - {"weights"} | LENGTHS | PRICE | {"mem", "time"}
CACHED = MODEL | {"gpu", "tp", "weights", "kv", "engine", "mem", "time"}
BEAMS = QUESTION | LENGTHS | {"time"}
NEED = "What do you need? From a use case, people and the response they want, to a plan."
APART = "Prefill here, decode there? Every ratio of such replicas, on the same arrivals."
KNOWN = "Every model and GPU that is known, with where each number comes from."
PAGES = (
    PageEntry("start", "Start", "flag", lambda: QUESTION | PRICE, said=NEED),
    PageEntry("fit", "Fit", "memory", lambda: QUESTION | LENGTHS | {"mem"}),
    PageEntry("estimate", "Estimate", "speed", _estimate_reads),
    PageEntry("simulate", "Simulate", "play_circle", _simulate_reads),
    PageEntry("plan", "Plan", "fact_check", lambda: SEARCHED),
    PageEntry("cost", "Cost", "payments", lambda: SERVED | LEVELS | PRICE),
    PageEntry("stack", "Techniques", "layers", _stack_reads, IMPROVE),
    PageEntry("advise", "What would help", "lightbulb", lambda: SERVED | PRICE, IMPROVE),
    PageEntry("quantization", "Quantization", "compress", lambda: FORMATS, IMPROVE, "quantize"),
    PageEntry("kv", "KV cache", "database", lambda: CACHED, IMPROVE),
    PageEntry("speculation", "Speculation", "bolt", lambda: QUESTION | {"time"}, IMPROVE, "speculate"),
    PageEntry("beam_search", "Beam search", "account_tree", lambda: BEAMS, IMPROVE, "beam-search"),
    PageEntry(
        "scaling", "More GPUs", "view_column", lambda: BEAMS | PRICE | {"concurrency"}, IMPROVE, "scale"
    ),
    PageEntry("cache", "Prefix cache", "cached", _cache_reads, IMPROVE, "cache-curve"),
    PageEntry("disaggregation", "Prefill apart", "call_split", lambda: SERVED, IMPROVE, said=APART),
    PageEntry("fleet", "Fleet", "hub", _fleet_reads, FLEETS),
    PageEntry("cascade", "Cascade", "filter_alt", _cascade_reads, FLEETS),
    PageEntry("sweeps", "Sweeps", "grid_on", frozenset, EVIDENCE, "sweep"),
    PageEntry("compare", "Your benchmark", "balance", _compare_reads, EVIDENCE),
    PageEntry("validate", "Validate", "rule", lambda: {"time"}, EVIDENCE),
    PageEntry(
        "models_and_gpus", "Models & GPUs", "table", lambda: MODEL | {"gpu", "mem"}, EVIDENCE, said=KNOWN
    ),
)
# examples to begin with: links relative to any page, with the widgets that are not at their defaults
PRESETS = {
    "8B chat on one H100": "estimate?",
    "70B chat on four H100": "estimate?model=llama-3.1-70b&tp=4&batch=32",
    "DeepSeek-V3 on eight H200": "fit?model=deepseek-v3&gpu=h200-sxm-141gb&tp=8&ep=true&kv=fp8",
    "gpt-oss-120b with long documents": "fit?model=gpt-oss-120b&gpu=h200-sxm-141gb&isl=32000&osl=1000",
    "Qwen3-32B in FP8 for retrieval": (
        "estimate?model=qwen3-32b&gpu=h200-sxm-141gb&weights=fp8&isl=8000&osl=300"
    ),
    "Static against continuous batching": "simulate?rate=10&sim_beside=static+batching",
    "Conversations behind a prefix-aware router": (
        "simulate?sim_arrivals=conversations&sim_replicas=4&sim_router=prefix-aware&rate=8"
    ),
    "A GPU of one's own or an API": "cost?model=llama-3.3-70b&tp=4",
    "What each technique is worth on an 8B": "stack?",
    "An 8B before a 70B": "cascade?model=llama-3.1-70b&tp=4&rate=20&casc_model=llama-3.1-8b",
    "L40S for short prompts, H100 for long ones": "fleet?rate=40&fleet_cv=2&fleet_ttft=500",
    "MTP for DeepSeek-V3": "speculation?model=deepseek-v3&gpu=h200-sxm-141gb&tp=8&spec_method=mtp&spec_batch=1",
}
