"""Rules broken on purpose, one at a time, each with the tests that must fail then.

A mutation says where in the package text stands exactly once, and what shall stand there instead: the file is found by
the text, so that it may move. The tests that it names need nothing beside a clone of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import capacity

PACKAGE = Path(capacity.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`short`: it is tried in every run of the tests, the others in the long form."""

    name: str
    where: str  # files of the package, as a pattern
    old: str
    new: str
    tests: tuple[str, ...]
    short: bool = False

    def file(self) -> Path:
        """Where it applies: the one file in which the text stands, and stands once."""
        found = [
            path for path in sorted(PACKAGE.glob(self.where)) for _ in range(path.read_text().count(self.old))
        ]
        assert len(found) == 1, (
            f"{self.name}: {self.old!r} stands {len(found)} times in {self.where}: {found}"
        )
        return found[0]


def rule(name: str) -> str:
    case = name.replace(" ", "-")
    return f"tests/simulator/core/test_schedules.py::test_a_rule_decides_as_worked_by_hand[{case}-events]"


def named(engine: str) -> str:
    return f"tests/simulator/core/test_schedules.py::test_named_scenarios_equal_the_engine[{engine}-events]"


def released(engine: str, release: str = "0.33") -> str:
    test = "test_named_scenarios_equal_the_release"
    return f"tests/simulator/core/test_schedules.py::{test}[{engine}-{release}-events]"


def retraction(case: str) -> str:
    name = "test_the_one_that_came_later_and_has_fewer_outputs_goes_back"
    return f"tests/simulator/schedulers/test_retraction.py::{name}[{case}-events]"


VLLM_V1, BLOCK_POOL, SIMULATOR, STEP = (
    "**/vllm_v1.py",
    "**/block_pool.py",
    "simulator/**/*.py",
    "step/**/*.py",
)

RETRACTION = "tests/simulator/schedulers/test_retraction.py"
TGI = "tests/simulator/schedulers/test_tgi.py"
EQUAL = (
    "tests/simulator/core/test_equal.py::test_the_same_deployment_does_the_same[0]"  # core and Python part
)

MUTATIONS = (
    # what once survived in a clone without the reference library
    Mutation(
        name="watermark blocks rounded up",
        where="**/policy.py",
        old="int(watermark * (num_blocks + 1))",
        new="-int(-watermark * (num_blocks + 1) // 1)",
        tests=(rule("the watermark is rounded down"),),
        short=True,
    ),
    Mutation(
        name="the earliest of equal priorities is preempted",
        where=VLLM_V1,
        old="key=lambda r: (r.priority, r.arrival))",
        new="key=lambda r: (r.priority, -r.arrival))",
        tests=(rule("of equal priorities the latest arrival is preempted"),),
    ),
    Mutation(
        name="the last in the batch of equal priorities and arrivals is preempted",
        where=VLLM_V1,
        old="return max(self.running, key=lambda r: (r.priority, r.arrival))",
        new="return max(reversed(self.running), key=lambda r: (r.priority, r.arrival))",
        tests=(rule("of equal priorities and arrivals the first in the batch is preempted"),),
    ),
    Mutation(
        name="prefill cadence holds whoever is kept waiting",
        where=VLLM_V1,
        old="self._admission_bound = not all(r.deferred for r in self.waiting)",
        new="self._admission_bound = False",
        tests=(rule("the prefill cadence does not hold while requests are kept waiting"),),
    ),
    Mutation(
        name="prefill cadence released by an arrival",
        where=VLLM_V1,
        old="            if not self._holds:\n                self._admission_bound = ",
        new="            if True:\n                self._admission_bound = ",
        tests=(rule("the prefill cadence does not hold while requests are kept waiting"),),
    ),
    Mutation(
        name="preempted in order of preemption",
        where=VLLM_V1,
        old="if len(step.preempted) > 1:",
        new="if False:",
        tests=(rule("preempted requests stand in running-list order"),),
    ),
    Mutation(
        name="full reservation of one token less",
        where=VLLM_V1,
        old="whole = min(r.known, limits.max_model_len)",
        new="whole = min(r.known, limits.max_model_len) - 1",
        tests=(rule("the whole prompt must fit, its last token too"),),
    ),
    Mutation(
        name="full reservation of one token more",
        where=VLLM_V1,
        old="whole = min(r.known, limits.max_model_len)",
        new="whole = min(r.known, limits.max_model_len) + 1",
        tests=(rule("the whole prompt fits to the token"),),
    ),
    Mutation(
        name="an exact size replays the next larger CUDA graph",
        where=STEP,
        old="size = sizes[bisect.bisect_left(sizes, rows)]",
        new="size = sizes[min(bisect.bisect_right(sizes, rows), len(sizes) - 1)]",
        tests=tuple(
            f"tests/step/test_graphs.py::test_an_exact_size_replays_its_own_graph[{rows}]" for rows in (1, 8)
        ),
        short=True,
    ),
    Mutation(
        name="the largest CUDA graph is never replayed",
        where=STEP,
        old="rows > sizes[-1]",
        new="rows >= sizes[-1]",
        tests=(
            "tests/step/test_graphs.py::test_the_largest_graph_is_replayed_and_one_row_more_runs_eagerly",
        ),
    ),
    Mutation(
        name="window slope over the context's knot width",
        where=STEP,
        old="window_low + window_width) - base) / window_width)",
        new="window_low + window_width) - base) / width)",
        tests=(
            "tests/step/test_pieces.py::test_a_piece_meets_the_curve_at_its_knots_in_both_sums[gpt-oss-20b]",
        ),
    ),
    Mutation(
        name="blocks behind a window freed oldest first",
        where=BLOCK_POOL,
        old="self._put_back(reversed(blocks[passed:behind]), ",
        new="self._put_back(blocks[passed:behind], ",
        tests=(
            "tests/simulator/kv_cache/test_block_pool.py::"
            "test_blocks_that_a_window_leaves_are_evicted_latest_first",
            rule("a window leaves its blocks behind latest first"),
        ),
    ),
    Mutation(
        name="what does not divide by the pipeline's stages is dropped",
        where=SIMULATOR,
        old="(rest if stage == 0 else 0)",
        new="0",
        tests=(
            "tests/simulator/test_batch_order.py::test_stages_take_a_step_s_time_to_the_picosecond[3-events]",
            "tests/simulator/test_batch_order.py::test_a_step_s_remainder_is_not_lost_while_stages_overlap[events]",
        ),
    ),
    Mutation(
        name="a prompt of max_model_len tokens is let in",
        where=SIMULATOR,
        old="if prompt_tokens >= max_model_len:",
        new="if prompt_tokens > max_model_len:",
        tests=(
            "tests/simulator/test_requests.py::test_a_prompt_that_fills_the_context_costs_no_step[events]",
        ),
    ),
    Mutation(
        name="a preemption before the first token counts as a stall",
        where=SIMULATOR,
        old="if r.first_token != MISSING:",
        new="if True:",
        tests=(
            "tests/simulator/test_time_parts.py::"
            "test_a_prompt_that_loses_its_place_before_its_first_token_does_not_stall[events]",
        ),
    ),
    Mutation(
        name="requests that end together in reverse order",
        where=VLLM_V1,
        old="                step.finished.append(r)",
        new="                step.finished.insert(0, r)",
        tests=(
            "tests/simulator/test_batch_order.py::"
            "test_requests_that_end_together_bring_their_successors_in_batch_order[events]",
            rule("requests that end together give back their blocks in batch order"),
        ),
    ),
    # rules of vLLM V1's scheduler
    Mutation(
        name="victim first",
        where=VLLM_V1,
        old="return self.running[-1]",
        new="return self.running[0]",
        tests=(named("v1"), named("v1async")),
    ),
    Mutation(
        name="admit after preemption",
        where=VLLM_V1,
        old="if not step.preempted:",
        new="if True:",
        tests=(rule("a step that preempts admits nobody"),),
    ),
    Mutation(
        name="preempted to the back of the queue",
        where=VLLM_V1,
        old="put_back = deque.appendleft",
        new="put_back = deque.append",
        tests=(named("v1"),),
    ),
    Mutation(
        name="skip instead of head-of-line break",
        where=VLLM_V1,
        old="            if not tokens:\n                break\n",
        new="            if not tokens:\n                waiting.add(waiting.pop())\n"
        "                tried = locals().get('tried', 0) + 1\n"
        "                if tried > len(waiting):\n                    break\n                continue\n",
        tests=(named("v1"),),
    ),
    Mutation(
        name="hit capped at n-2",
        where=VLLM_V1,
        old="hit = self.pool.lookup(r.table, r.known - 1)\n        computed: int = hit[0]",
        new="hit = self.pool.lookup(r.table, r.known - 2)\n        computed: int = hit[0]",
        tests=(named("v1"),),
    ),
    Mutation(
        name="full-sequence reservation ignored",
        where=VLLM_V1,
        old="if limits.reserve_full_isl and",
        new="if False and",
        tests=(rule("the whole prompt must fit, its last token too"), named("v1")),
    ),
    Mutation(
        name="watermark without the null block",
        where="**/policy.py",
        old="int(watermark * (num_blocks + 1))",
        new="int(watermark * num_blocks)",
        tests=(rule("the watermark is kept free"), released("v1")),
    ),
    Mutation(
        name="drafts for a request that starts alone",
        where=VLLM_V1,
        old=" and (self._some_scheduled or starts_cached)",
        new="",
        tests=(released("v1"), released("v1async")),
    ),
    Mutation(
        name="no drafts for a request that starts alone and cached",
        where=VLLM_V1,
        old=" and (self._some_scheduled or starts_cached)",
        new=" and self._some_scheduled",
        tests=(released("v1"), released("v1async")),
    ),
    Mutation(
        name="drafts beside a prefill",
        where=VLLM_V1,
        old="rules.pads_drafts and not self._prefill_scheduled and",
        new="rules.pads_drafts and",
        tests=(released("v1"),),
    ),
    Mutation(
        name="drafts up to max_model_len",
        where=VLLM_V1,
        old="computed + padded + starts_unpadded <=",
        new="computed + padded <=",
        tests=(released("v1"), released("v1async")),
    ),
    Mutation(
        name="prefill cadence holds a request with one token",
        where=VLLM_V1,
        old="if self._holds and is_prefill:",
        new="if self._holds:",
        tests=(released("v1"),),
    ),
    Mutation(
        name="prefill cadence ignores recomputed outputs",
        where=VLLM_V1,
        old="not all(r.mid_prefill for r in self.running)",
        new="any(r.computed >= r.prompt_tokens for r in self.running)",
        tests=(released("v1"),),
    ),
    Mutation(
        name="a verification caches tokens that it trimmed",
        where=VLLM_V1,
        old="min(r.computed - r.placeholders, r.known - 1)",
        new="min(r.computed - r.placeholders, r.known)",
        tests=(released("v1"), released("v1async")),
    ),
    Mutation(
        name="a preempted request resumes while its token is in flight",
        where=VLLM_V1,
        old="self.limits.rules.waits_for_stale_output and r.in_flight_tokens > 0",
        new="False",
        tests=(released("v1"),),
    ),
    Mutation(
        name="a skipped request is a backlog",
        where=VLLM_V1,
        old="r.deferred = True",
        new="r.deferred = False",
        tests=(released("v1"),),
    ),
    Mutation(
        name="a skipped request is no backlog after its next preemption",
        where="**/sequence.py",
        old="        self.deferred = False\n        self.epoch",
        new="        self.epoch",
        tests=(released("v1"),),
    ),
    Mutation(
        name="up to 0.30, a preempted request precedes skipped ones",
        where=VLLM_V1,
        old="if self.limits.priority or self.limits.rules.skipped_keep_place:",
        new="if True:",
        tests=(released("v1", "0.30"),),
    ),
    Mutation(
        name="steps without rows take no place in the queue",
        where="**/simulator/engine.py",
        old="1 if policy.staggers else min(policy.empty_steps, free)",
        new="1 if policy.staggers else 0",
        tests=(released("v1"),),
    ),
    Mutation(
        name="up to 0.22, steps without rows fill the queue",
        where="**/sequence.py",
        old="if self.rules.empty_steps_fill_queue else 1",
        new="",
        tests=(released("v1", "0.22"),),
    ),
    Mutation(
        name="up to 0.22, a step without rows at the head of the queue allows no other",
        where="**/simulator/engine.py",
        old="self._passed if waits_early else 0",
        new="0",
        tests=(released("v1", "0.22"),),
    ),
    Mutation(
        name="up to 0.22, the engine does not wait after a step that only preempts",
        where="**/simulator/engine.py",
        old="elif is_empty or (waits_early and not (computes and in_flight[0].end > now_ps)):",
        new="elif is_empty:",
        tests=(released("v1", "0.22"),),
    ),
    Mutation(
        name="on Model Runner V2, a decode waits for one call less than there are stages",
        where=VLLM_V1,
        old="self._calls + self.limits.pipeline_stages",
        new="self._calls + self.limits.pipeline_stages - 1",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="on Model Runner V2, a step does not wait for sampled tokens",
        where="**/simulator/engine.py",
        old="if self.policy.staggers else now_ps",
        new="if False else now_ps",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="on Model Runner V2, a step waits for the token of a request with one output token",
        where="**/simulator/engine.py",
        old="row.yields and row.sequence.asked_known > row.sequence.prompt_tokens + 1",
        new="row.yields",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="on Model Runner V2, one step without rows fills the queue",
        where="**/simulator/engine.py",
        old="1 if policy.staggers else min(policy.empty_steps, free)",
        new="min(policy.empty_steps, free)",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="on Model Runner V2, no more steps are in flight than there are stages",
        where="**/sequence.py",
        old="return self.pipeline_stages + asynchronous",
        new="return self.pipeline_stages + (asynchronous and self.pipeline_stages == 1)",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="a window's admission counts one step in flight",
        where="**/setup.py",
        old="in_flight_tokens=steps * setup",
        new="in_flight_tokens=setup",
        tests=(released("v1async"),),
    ),
    Mutation(
        name="watermark ignored",
        where=VLLM_V1,
        old="self._watermark_blocks if self.running else 0",
        new="0",
        tests=(rule("the watermark is kept free"), named("v1")),
    ),
    Mutation(
        name="watermark for a request alone",
        where=VLLM_V1,
        old="self._watermark_blocks if self.running else 0",
        new="self._watermark_blocks",
        tests=(
            "tests/simulator/schedulers/test_vllm_v1.py::test_watermark_counts_only_while_something_runs",
        ),
    ),
    Mutation(
        name="long-prefill threshold on a lone request",
        where=VLLM_V1,
        old="exempt = self.limits.rules.lone_prefill_exempt and self.unfinished <= 1",
        new="exempt = False",
        tests=(named("v1"),),
    ),
    Mutation(
        name="priority ties ignore arrival",
        where=VLLM_V1,
        old="key=lambda r: (r.priority, r.arrival))",
        new="key=lambda r: r.priority)",
        tests=(rule("of equal priorities the latest arrival is preempted"),),
    ),
    Mutation(
        name="a preempted row's tokens are not refunded",
        where=VLLM_V1,
        old="                refund = row.tokens\n                del step.rows[i]",
        new="                del step.rows[i]",
        tests=("tests/simulator/schedulers/test_vllm_v1.py::test_victim_already_scheduled_is_refunded",),
    ),
    Mutation(
        name="a step too many for a request that is about to end",
        where=VLLM_V1,
        old="r.known + r.in_flight_yields >= r.max_known or self._calls < r.next_call",
        new="self._calls < r.next_call",
        tests=(named("v1async"),),
    ),
    # the block pool
    Mutation(
        name="uncached blocks freed to the tail",
        where=BLOCK_POOL,
        old="        uncached_first: bool = True,\n",
        new="        uncached_first: bool = False,\n",
        tests=(named("v1"),),
    ),
    Mutation(
        name="freed head first",
        where=BLOCK_POOL,
        old="self._put_back(reversed(blocks), ",
        new="self._put_back(blocks, ",
        tests=(
            "tests/simulator/kv_cache/test_block_pool.py::"
            "test_released_blocks_are_evicted_tail_first_and_in_order_of_their_release",
            named("v1"),
        ),
    ),
    Mutation(
        name="evictable hits not counted",
        where=BLOCK_POOL,
        old="needed += sum(1 for b in hits if b != NULL and self.ref_counts[b] == 0)",
        new="pass",
        tests=(named("v1"),),
    ),
    Mutation(
        name="a window one token narrower",
        where=BLOCK_POOL,
        old="max(0, processed_tokens - window + 1)",
        new="max(0, processed_tokens - window + 2)",
        tests=("tests/simulator/kv_cache/test_block_pool.py::test_a_window_frees_what_no_token_looks_at[5]",),
    ),
    Mutation(
        name="a partly filled block is cached",
        where=BLOCK_POOL,
        old="        full = tokens // self.block_size\n        if not",
        new="        full = -(-tokens // self.block_size)\n        if not",
        tests=(named("v1async"),),
    ),
    # other engines
    Mutation(
        name="SGLang retracts who has the most outputs",
        where="**/sglang.py",
        old="key=lambda r: (r.prompt_tokens - r.known, r.prompt_tokens))",
        new="key=lambda r: (r.known - r.prompt_tokens, r.prompt_tokens))",
        tests=(retraction("sglang-options0"),),
    ),
    Mutation(
        name="TensorRT-LLM pauses who started first",
        where="**/tensorrt_llm.py",
        old="last = self.running[-1]",
        new="last = self.running[0]",
        tests=(retraction("tensorrt-llm-options1"),),
    ),
    Mutation(
        name="SGLang expects no tokens more after a retraction",
        where="**/sglang.py",
        old="(produced + RETRACT_DECODE_STEPS * len(stay))",
        new="produced",
        tests=(f"{RETRACTION}::test_sglang_expects_twenty_tokens_more_of_everyone_after_a_retraction",),
    ),
    Mutation(
        name="TensorRT-LLM starts prompts in a step that paused someone",
        where="**/tensorrt_llm.py",
        old="        if not step.preempted:\n            self._schedule_prompts(",
        new="        if True:\n            self._schedule_prompts(",
        tests=(f"{RETRACTION}::test_tensorrt_llm_starts_nobody_in_a_step_that_paused_someone",),
    ),
    Mutation(
        name="TGI takes the blocks of the prompt alone",
        where="**/tgi.py",
        old="slots = self.last_slot(r) + self._drafts",
        new="slots = r.known",
        tests=(f"{TGI}::test_tgi_takes_all_blocks_at_the_start",),
    ),
    Mutation(
        name="TGI lets a prefill join when one more waits",
        where="**/tgi.py",
        old="least = int(len(self.running) * self.waiting_served_ratio)",
        new="least = int(len(self.running) * self.waiting_served_ratio) + 1",
        tests=(f"{TGI}::test_tgi_joins_when_enough_wait_or_after_so_many_decode_steps",),
    ),
    Mutation(
        name="TGI counts decode steps from the beginning",
        where="**/tgi.py",
        old="            self._decode_steps = 0\n        else:",
        new="            pass\n        else:",
        tests=(f"{TGI}::test_tgi_joins_when_enough_wait_or_after_so_many_decode_steps",),
    ),
    Mutation(
        name="slots let one more wait",
        where="**/slots.py",
        old="self.unfinished >= self.limits.max_num_seqs + self.max_waiting",
        new="self.unfinished > self.limits.max_num_seqs + self.max_waiting",
        tests=("tests/simulator/schedulers/test_slots.py::test_a_full_queue_turns_requests_away",),
    ),
    Mutation(
        name="who gives up its KV goes to the back",
        where="**/batching.py",
        old="self.waiting.appendleft(r)",
        new="self.waiting.append(r)",
        tests=(EQUAL,),
    ),
    Mutation(
        name="a request that was given up keeps its rows",
        where="**/sequence.py",
        old="        self.epoch += 1\n",
        new="",
        tests=(EQUAL,),
    ),
)
