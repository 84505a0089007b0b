"""Scheduling rules that changed between releases of vLLM V1 and of SGLang.

Each rule is true in vLLM 0.33.0 or SGLang 0.5.23 and false in all releases before the one in its comment. The comment
also names the changed file, relative to `vllm/v1/core` or `sglang/srt`. An engine's TOML file lists the rules that are
false in a release.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from capacity.base.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRules:
    """Scheduling rules of one release. A rule is false if the release is older than the rule."""

    # 0.33, sched/scheduler.py: prefill_schedule_interval applies; before, only with data-parallel ranks in lockstep
    applies_prefill_interval: bool = True
    # 0.33, sched/scheduler.py: with priorities, others are tried after a request preempted itself
    self_preempt_continues: bool = True
    # 0.33, sched/scheduler.py: synchronous scheduling caches the blocks that accepted drafts fill when a step ends;
    # before, at the next allocation
    caches_accepted_drafts: bool = True
    # 0.31, sched/scheduler.py: the long-prefill threshold does not limit a request that is alone
    lone_prefill_exempt: bool = True
    # 0.31, sched/scheduler.py: with fcfs, a request that a step skipped keeps its place; before, it precedes all others
    # that wait, including requests that are preempted later
    skipped_keep_place: bool = True
    # 0.31, sched/scheduler.py: max_num_active_seqs exists
    applies_active_limit: bool = True
    # 0.28, sched/scheduler.py: the request after a preempted, unscheduled one is not skipped in this step
    preemption_shifts_index: bool = True
    # 0.27, sched/scheduler.py: a preempted request is skipped while a step in flight still computes a token of it
    waits_for_stale_output: bool = True
    # 0.26, kv_cache_manager.py: a block before the window is freed only after the steps in flight that attend to it, so
    # the admission test counts the token budgets of all these steps
    window_waits_for_steps: bool = True
    # 0.30, sched/scheduler.py: the same if no request runs and all its other tokens are cached
    pads_cached_starts: bool = True
    # 0.29, ../../config/vllm.py: Model Runner V2 is the default of all models; with pipeline stages it schedules
    # asynchronously, with one step more in flight than stages, and a decode waits for as many calls of the scheduler as
    # there are stages
    asynchronous_stages: bool = True
    # 0.29, sched/scheduler.py: such a request starts without drafts if they exceed max_model_len; before, it waits
    starts_without_room: bool = True
    # 0.25, sched/scheduler.py: a request that starts with one token gets drafts if others run, all past their prefill
    pads_drafts: bool = True
    # 0.24, kv_cache_manager.py: the watermark exists
    applies_watermark: bool = True
    # 0.24, block_pool.py: freed blocks without content are reused first; before, in the order of their release
    reuses_uncached_first: bool = True
    # 0.23, ../engine/core.py: while all requests wait for steps in flight, steps without rows fill the queue of these
    # steps; before, one such step ends the decision
    empty_steps_fill_queue: bool = True
    # 0.23, single_type_kv_cache_manager.py: the same for layers with a window
    reuses_uncached_window_first: bool = True
    # 0.23, sched/scheduler.py: a request starts only if its lookahead slots fit as well
    admits_with_lookahead: bool = True
    # 0.19, sched/scheduler.py: scheduler_reserve_full_isl exists
    reserves_full_prompt: bool = True

    # SGLang 0.5.23, managers/scheduler.py: if the last chunk of a prompt spends the budget of a step, no other request
    # is tried in it; before, max_running_requests or too little memory then stop admissions until one ends
    spent_step_ends: bool = True
    # SGLang 0.5.22, managers/schedule_policy.py: with ignore_eos, a request reserves its whole output
    reserves_ignored_eos: bool = True
    # SGLang 0.5.17, managers/schedule_policy.py: the budget of a separate pool for layers with a window counts outputs,
    # up to the window; before, it counts at least a window for each request
    budgets_window_outputs: bool = True
    # SGLang 0.5.14, environ.py: tokens of outputs behind the window are freed every 128 tokens; before, every window
    frees_windows_by_128: bool = True
    # SGLang 0.5.13, managers/schedule_policy.py: with chunked prefill, --max-prefill-tokens does not defer a request
    chunks_past_prefill_limit: bool = True
    # SGLang 0.5.12, managers/scheduler.py: models with windows try to start a request in every step
    retries_windowed_prompts: bool = True
    # SGLang 0.5.12, mem_cache/swa_radix_cache.py: a running request keeps only the window of its prompt in a separate
    # pool for layers with a window; before, its last chunk
    locks_windows_only: bool = True
    # SGLang 0.5.11, managers/schedule_policy.py: a separate pool for layers with a window has a budget of its own;
    # before, prompts and outputs must fit in the smaller pool
    budgets_windows_apart: bool = True
    # SGLang 0.5.11, managers/schedule_policy.py: a request starts only if one more page fits
    admits_with_page: bool = True
    # SGLang 0.5.10, managers/schedule_policy.py: a request that starts reserves one more page
    reserves_page: bool = True


NEWEST_RULES = SchedulingRules()

# settings of SchedulerLimits that have no effect without a rule, and the value that means no effect
NEUTRAL_SETTINGS: dict[str, tuple[str, object]] = {
    "applies_prefill_interval": ("prefill_schedule_interval", 1),
    "applies_active_limit": ("max_num_active_seqs", None),
    "applies_watermark": ("watermark", 0.0),
    "reserves_full_prompt": ("reserve_full_isl", False),
}


def rules_without(names: Iterable[str]) -> SchedulingRules:
    """Return the rules of a release that lacks those in `names`. Raises UnknownName."""
    known = [field.name for field in fields(SchedulingRules)]
    for name in names:
        if name not in known:
            raise UnknownName("scheduling rule", name, known)
    return SchedulingRules(**dict.fromkeys(names, False))
