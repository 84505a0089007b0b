"""The techniques by verb: which function of which module answers, and what the help says. Imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from capacity.techniques.attention_io import attention_traffic
    from capacity.techniques.batching import compare_batching
    from capacity.techniques.beam_search import beam_search
    from capacity.techniques.cache_curve import cache_curve
    from capacity.techniques.engine_table import engine_table
    from capacity.techniques.kv import kv
    from capacity.techniques.quantize import quantize
    from capacity.techniques.scaling import scale
    from capacity.techniques.speculate import speculate

__all__ = [
    "attention_traffic",
    "beam_search",
    "cache_curve",
    "compare_batching",
    "engine_table",
    "kv",
    "quantize",
    "scale",
    "speculate",
]


class Instead(NamedTuple):
    """Another question under the same verb, which takes nothing; `schema` names its answers' schema."""

    flag: str
    question: str
    schema: str
    help: str


class Technique(NamedTuple):
    """A verb of the command line: `question` of `capacity.techniques.<module>`, whose keywords with a `Flag` are flags.

    `of_a_pool`: the verb takes a pool's flags. `first`: keywords that the help lists first. `without`: fields of the
    question's specs that are no flags here. `by_flags`: the function whose keywords are the flags, where the question
    takes objects. `own_verb`: the verb asks more than this, and is written out in `capacity.cli`.
    """

    verb: str
    module: str
    question: str
    help: str
    of_a_pool: bool = True
    first: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    by_flags: str = ""
    instead: tuple[Instead, ...] = ()
    own_verb: bool = False


TECHNIQUES = (
    Technique(
        "quantize",
        module="quantize",
        question="quantize",
        help="Which way to quantize? Memory, batch, latency, cost and published quality of each, side by side.",
        instead=(
            Instead(
                "--list",
                question="quantization_list",
                schema="quantizations",
                help="Only the names that --quantization takes, in every verb.",
            ),
        ),
    ),
    Technique(
        "speculate",
        module="speculate",
        question="speculate",
        help="Does speculative decoding pay, with how many drafts, up to which batch?",
        instead=(
            Instead(
                "--textbook",
                question="textbook",
                schema="textbook",
                help="Only a published textbook table, beside the formulas.",
            ),
            Instead(
                "--list",
                question="speculation_methods",
                schema="speculators",
                help="Only the ways to draft, with their published acceptance.",
            ),
        ),
    ),
    Technique(
        "kv",
        module="kv",
        question="kv",
        first=("models", "gpus", "kv_cache_dtype"),
        help=(
            "How large is the KV cache? Per token and per request, by kind of attention, and what each GPU holds."
        ),
        of_a_pool=False,
    ),
    Technique(
        "cache-curve",
        module="cache_curve",
        question="cache_curve",
        by_flags="cache_curve_by_flags",
        help=(
            "Does prefix caching pay? Hit rate at every cache size, by routing, and the bill under providers' caches."
        ),
        of_a_pool=False,
    ),
    Technique(
        "engines",
        module="engine_table",
        question="engine_table",
        help="The serving engines, with the defaults, limits and overheads that the simulator takes.",
        of_a_pool=False,
        own_verb=True,
    ),
    Technique(
        "scale",
        module="scaling",
        question="scale",
        help="What do more GPUs buy? Latency, throughput per GPU and efficiency along one axis of parallelism.",
    ),
    Technique(
        "attention-io",
        module="attention_io",
        question="attention_traffic",
        help=(
            "What does FlashAttention save? HBM traffic and memory of naive and tiled attention, and the measured "
            "kernel."
        ),
    ),
    Technique(
        "beam-search",
        module="beam_search",
        question="beam_search",
        help="What does each more beam of a request cost, in steps and in KV, by how an engine carries beams along?",
    ),
    Technique(
        "batching",
        module="batching",
        question="compare_batching",
        help=(
            "What does continuous batching gain, by the spread of lengths in closed form, and on these arrivals?"
        ),
        without=("batch_size", "scheduling"),
    ),
)
HOMES = {f"capacity.techniques.{technique.module}": (technique.question,) for technique in TECHNIQUES}
QUESTIONS = {
    schema: (f"capacity.techniques.{technique.module}", question)
    for technique in TECHNIQUES
    for schema, question in (
        (technique.verb, technique.question),
        *sorted((other.schema, other.question) for other in technique.instead),
    )
}  # by the name of the answer's schema: module and function
