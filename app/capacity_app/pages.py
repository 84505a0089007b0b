"""The pages, in the order of the menu. A page of its own is a script in `app_pages/` and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from capacity_app.state import ENGINE, LENGTHS, LEVELS, MODEL, PRICE, VARIATION, chosen
from capacity_app.traffic import ARRIVALS, CLOSED_LOOP, TOGETHER_AT_ONCE, TRACE

FOLDER = Path(__file__).parent / "app_pages"
QUESTION = MODEL | ENGINE
IMPROVE, FLEETS, EVIDENCE = "Improve", "Fleets", "Evidence"  # sections of the menu
TOGETHER, LOOP, RATE = "a batch together", "a closed loop", "arrivals at a rate"  # of the Estimate page
THIS_LOAD, OVER_LOADS, EVERY_GPU, EVERY_ENGINE, FRONTIER, TYPING = (
    "this load",
    "over the load",
    "every GPU",
    "every engine",
    "frontier",
    "typing",
)  # its views
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
AS_FILE, AT_RATE, AT_CONCURRENCY = (
    "as recorded",
    "by requests/s",
    "by concurrency",
)  # of the page that compares


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """`name` is the script's name and the page's path in the URL; pages of a `section` share a menu;
    `reads` gives the keys of the sidebar that its answer
    depends on, which may hang on a choice of the page."""

    name: str
    title: str
    icon: str
    help: str
    reads: Callable[[], Set[str]]
    section: str = ""

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / f"{self.name}.py"


def _estimate_reads() -> Set[str]:
    load = {LOOP: VARIATION | {"concurrency"}, RATE: VARIATION | LEVELS | {"rate"}}
    differ = VARIATION if chosen("view", "") == FRONTIER else frozenset()
    return (
        differ
        | QUESTION
        | LENGTHS
        | PRICE
        | {"client", "time"}
        | load.get(chosen("load", TOGETHER), frozenset())
    )


def _simulate_reads() -> Set[str]:
    read = QUESTION | PRICE | LEVELS | {"client", "time"}
    arrivals = chosen("sim_arrivals", ARRIVALS[0])
    if arrivals == TRACE:
        return read
    load = {CLOSED_LOOP: {"concurrency"}, TOGETHER_AT_ONCE: set()}.get(arrivals, {"rate"})
    return read | LENGTHS | VARIATION | load


def _compare_reads() -> Set[str]:
    arrivals = {AT_RATE: {"rate"}, AT_CONCURRENCY: {"concurrency"}}.get(
        chosen("cmp_arrivals", AS_FILE), set()
    )
    lengths = LENGTHS | VARIATION if chosen("cmp_lengths", "") in ("true", "True") else set()
    return QUESTION | arrivals | lengths


def _stack_reads() -> Set[str]:
    load = {"rate"} if chosen("stack_load", LOOP) == RATE else {"concurrency"}
    return QUESTION | LENGTHS | VARIATION | PRICE | load | {"client", "time"}


def _fleet_reads() -> Set[str]:
    differ = VARIATION if chosen("fleet_lengths", AS_SIDEBAR) == AS_SIDEBAR else frozenset()
    return MODEL | LENGTHS | PRICE | differ | {"engine", "rate", "client"}


def _cascade_reads() -> Set[str]:
    read = MODEL | LENGTHS | VARIATION | PRICE | {"rate", "client"}
    if chosen("casc_on", OWN_GPUS) == OWN_GPUS:
        return read | ENGINE | {"time"}
    return read | ({"gpu", "time"} if chosen("casc_small", "true") in ("true", "True") else set())


PAGES = (
    PageEntry(
        name="start",
        title="Start",
        icon=":material/flag:",
        help="What do you need? From a use case, people and the response they want, to a plan.",
        reads=lambda: QUESTION | PRICE,
    ),
    PageEntry(
        name="fit",
        title="Fit",
        icon=":material/memory:",
        help="Does it fit? Memory of each GPU against what the engine may use, and on which GPUs else it would.",
        reads=lambda: QUESTION | LENGTHS | {"mem"},
    ),
    PageEntry(
        name="estimate",
        title="Estimate",
        icon=":material/speed:",
        help="How fast and how dear? Latency, throughput and cost with intervals, what bounds them, what would help.",
        reads=_estimate_reads,
    ),
    PageEntry(
        name="simulate",
        title="Simulate",
        icon=":material/play_circle:",
        help="What would users see? Requests replayed by the engine's rules, beside other ways of batching.",
        reads=_simulate_reads,
    ),
    PageEntry(
        name="plan",
        title="Plan",
        icon=":material/fact_check:",
        help="What to rent? The cheapest deployments that meet a service level, ranked, with what was turned down.",
        reads=lambda: MODEL | LENGTHS | VARIATION | PRICE | {"engine", "rate", "client"},
    ),
    PageEntry(
        name="cost",
        title="Cost",
        icon=":material/payments:",
        help="What does it cost? The bill, an API beside it, replicas by the hour, and what the bill hangs on.",
        reads=lambda: QUESTION | LENGTHS | VARIATION | LEVELS | PRICE | {"rate", "client", "time"},
    ),
    PageEntry(
        name="stack",
        title="Techniques",
        icon=":material/layers:",
        section=IMPROVE,
        help="What is each technique worth? From none to all, one upon the other and each alone, on your model.",
        reads=_stack_reads,
    ),
    PageEntry(
        name="advise",
        title="What would help",
        icon=":material/lightbulb:",
        section=IMPROVE,
        help="What would help? Every change of the field's checklist, simulated for this deployment.",
        reads=lambda: QUESTION | LENGTHS | VARIATION | PRICE | {"rate", "client", "time"},
    ),
    PageEntry(
        name="quantization",
        title="Quantization",
        icon=":material/compress:",
        section=IMPROVE,
        help="Which format? Memory, latency, cost and published quality of every way to quantize.",
        reads=lambda: QUESTION - {"weights"} | LENGTHS | PRICE | {"mem", "time"},
    ),
    PageEntry(
        name="kv",
        title="KV cache",
        icon=":material/database:",
        section=IMPROVE,
        help="How large is the KV cache, and what would keeping less of it buy? By context, attention and method.",
        reads=lambda: MODEL | {"gpu", "tp", "weights", "kv", "engine", "mem", "time"},
    ),
    PageEntry(
        name="speculation",
        title="Speculation",
        icon=":material/bolt:",
        section=IMPROVE,
        help="Does speculative decoding pay? Over acceptance, draft length, way of drafting and batch size.",
        reads=lambda: QUESTION | {"time"},
    ),
    PageEntry(
        name="beam_search",
        title="Beam search",
        icon=":material/account_tree:",
        section=IMPROVE,
        help="What does each more beam cost, in steps and in memory, by how an engine carries beams along?",
        reads=lambda: QUESTION | LENGTHS | {"time"},
    ),
    PageEntry(
        name="scaling",
        title="More GPUs",
        icon=":material/view_column:",
        section=IMPROVE,
        help="What do more GPUs buy? Latency, throughput and efficiency along one axis of parallelism.",
        reads=lambda: QUESTION | LENGTHS | PRICE | {"concurrency", "time"},
    ),
    PageEntry(
        name="cache",
        title="Prefix cache",
        icon=":material/cached:",
        section=IMPROVE,
        help="Does prefix caching pay? What a cache of each size would find in your requests.",
        reads=lambda: MODEL | {"gpu", "tp"} if chosen("cache_saves", "") in ("true", "True") else frozenset(),
    ),
    PageEntry(
        name="disaggregation",
        title="Prefill apart",
        icon=":material/call_split:",
        section=IMPROVE,
        help="Prefill here, decode there? Every ratio of such replicas, on the same arrivals.",
        reads=lambda: QUESTION | LENGTHS | VARIATION | {"rate", "client", "time"},
    ),
    PageEntry(
        name="fleet",
        title="Fleet",
        icon=":material/hub:",
        section=FLEETS,
        help="Short requests to cheap GPUs, long ones to large? The threshold found, against one pool for all.",
        reads=_fleet_reads,
    ),
    PageEntry(
        name="cascade",
        title="Cascade",
        icon=":material/filter_alt:",
        section=FLEETS,
        help="Ask something cheaper first? A semantic cache or a small model: $, latency, and where it pays.",
        reads=_cascade_reads,
    ),
    PageEntry(
        name="sweeps",
        title="Sweeps",
        icon=":material/grid_on:",
        section=EVIDENCE,
        help="What did a sweep find? Any number over any option, from its store or its export.",
        reads=frozenset,
    ),
    PageEntry(
        name="compare",
        title="Your benchmark",
        icon=":material/balance:",
        section=EVIDENCE,
        help="Does it agree with your server? Your benchmark's files beside the prediction, and the likely causes.",
        reads=_compare_reads,
    ),
    PageEntry(
        name="validate",
        title="Validate",
        icon=":material/rule:",
        section=EVIDENCE,
        help="How far off is it on a GPU? Your measurements of it beside the prediction.",
        reads=lambda: {"time"},
    ),
    PageEntry(
        name="models_and_gpus",
        title="Models & GPUs",
        icon=":material/table:",
        section=EVIDENCE,
        help="Every model and GPU that is known, with where each number comes from.",
        reads=lambda: MODEL | {"gpu", "mem"},
    ),
)
