"""The techniques by verb: which function of which module answers, and which records are its answers. Imports none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from capacity.techniques.attention_io import attention_traffic
    from capacity.techniques.batching import compare_batching
    from capacity.techniques.cache_curve import cache_curve
    from capacity.techniques.engine_table import engine_table
    from capacity.techniques.kv import kv
    from capacity.techniques.quantize import quantize
    from capacity.techniques.scaling import scale
    from capacity.techniques.speculate import speculate

__all__ = [
    "attention_traffic",
    "cache_curve",
    "compare_batching",
    "engine_table",
    "kv",
    "quantize",
    "scale",
    "speculate",
]


class Instead(NamedTuple):
    """Another question under the same verb, which takes nothing: its flag, its function, its help."""

    flag: str
    question: str
    help: str


class Technique(NamedTuple):
    """A verb of the command line: `question` of `capacity.techniques.<module>`, whose keywords with a `Flag` are flags.

    `answers`: records by the name of their schema. `of_a_pool`: the verb takes a pool's flags. `without`: fields of
    the question's specs that are no flags here.
    """

    verb: str
    module: str
    question: str
    answers: dict[str, str]
    help: str
    of_a_pool: bool = True
    without: tuple[str, ...] = ()
    instead: tuple[Instead, ...] = ()


TECHNIQUES = (
    Technique(
        "quantize",
        module="quantize",
        question="quantize",
        answers={"quantize": "Quantizing"},
        help="Which way to quantize? Memory, batch, latency, cost and published quality of each, side by side.",
    ),
    Technique(
        "speculate",
        module="speculate",
        question="speculate",
        answers={"speculate": "Speculating", "speculators": "Speculators", "textbook": "Textbook"},
        help="Does speculative decoding pay, with how many drafts, up to which batch?",
        instead=(
            Instead("--textbook", "textbook", "Only a published textbook table, beside the formulas."),
            Instead(
                "--list",
                "speculation_methods",
                "Only the ways to draft, with their published acceptance.",
            ),
        ),
    ),
    Technique(
        "kv",
        module="kv",
        question="kv",
        answers={"kv": "KvAnswer"},
        help=(
            "How large is the KV cache? Per token and per request, by kind of attention, and what each GPU holds."
        ),
        of_a_pool=False,
    ),
    Technique(
        "cache-curve",
        module="cache_curve",
        question="cache_curve",
        answers={"cache-curve": "CacheCurve"},
        help=(
            "Does prefix caching pay? Hit rate at every cache size, by routing, and the bill under providers' caches."
        ),
        of_a_pool=False,
    ),
    Technique(
        "engines",
        module="engine_table",
        question="engine_table",
        answers={"engines": "Engines"},
        help="The serving engines, with the defaults, limits and overheads that the simulator takes.",
        of_a_pool=False,
    ),
    Technique(
        "scale",
        module="scaling",
        question="scale",
        answers={"scale": "Scaling"},
        help="What do more GPUs buy? Latency, throughput per GPU and efficiency along one axis of parallelism.",
    ),
    Technique(
        "attention-io",
        module="attention_io",
        question="attention_traffic",
        answers={"attention-io": "AttentionTrafficTable"},
        help=(
            "What does FlashAttention save? HBM traffic and memory of naive and tiled attention, and the measured "
            "kernel."
        ),
    ),
    Technique(
        "batching",
        module="batching",
        question="compare_batching",
        answers={"batching": "Batching"},
        help=(
            "What does continuous batching gain, by the spread of lengths in closed form, and on these arrivals?"
        ),
        without=("batch_size", "scheduling"),
    ),
)
RECORDS = {
    schema: (f"capacity.techniques.{technique.module}", record)
    for technique in TECHNIQUES
    for schema, record in technique.answers.items()
}  # by the name of the schema: where the record stands
HOMES = {f"capacity.techniques.{technique.module}": (technique.question,) for technique in TECHNIQUES}
