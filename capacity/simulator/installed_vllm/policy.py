"""Policy that calls the scheduler of a vLLM on this machine, with vLLM's own KV cache."""

import weakref
from collections.abc import Hashable
from dataclasses import replace
from itertools import count
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.simulator.installed_vllm.process import NEWEST, OLDEST, Json, VllmProcess, find_process
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.schedulers.policy import Policy
from capacity.simulator.schedulers.sequence import Row, SchedulerLimits, Sequence, Speculation, Status, Step
from capacity.simulator.setup import EngineSetup
from capacity.step import PS_PER_S

QUEUE_FILLS_SINCE = (0, 23)  # release of the rule `empty_steps_fill_queue`
ASYNCHRONOUS_STAGES_SINCE = (0, 23)  # first release with these schedules on Model Runner V2


class ReportedPool:
    """KV cache in another process: its size, and the number of free blocks that the process last reported."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.num_blocks = self.free_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.windows: tuple[int | None, ...] = (None,)

    def table(self, content: Content) -> Content:
        """Return `content` itself, because the other process has the block table."""
        return content


class InstalledVllm(Policy):
    """Policy that forwards all decisions to vLLM's scheduler in the process `find_process(source)`."""

    aborts = True
    own_pool = ReportedPool

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: ReportedPool,
        *,
        source: str,
        asynchronous: bool,
        windows: tuple[int | None, ...],
        speculation: Speculation | None = None,
    ) -> None:
        self.pool = pool
        self.speculation = speculation
        self._process = find_process(source)
        stages = limits.pipeline_stages
        asynchronous &= stages == 1 or self._process.version_pair >= ASYNCHRONOUS_STAGES_SINCE
        self.staggers = asynchronous and stages > 1
        self.steps_in_flight = limits.steps_in_flight(asynchronous=asynchronous)
        self.empty_steps = self.steps_in_flight if self._process.version_pair >= QUEUE_FILLS_SINCE else 1
        self._requests: dict[str, Sequence] = {}
        self._block_ids: dict[Hashable, int] = {}
        self._next_id = count(1)
        self._running = self._waiting = 0
        self._number = self._process.open_scheduler(
            {
                "num_blocks": pool.num_blocks,
                "block_size": pool.block_size,
                "prefix_caching": pool.prefix_caching,
                "windows": windows,
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.max_num_batched_tokens,
                "max_model_len": limits.max_model_len,
                "enable_chunked_prefill": limits.enable_chunked_prefill,
                "reserve_full_isl": limits.reserve_full_isl,
                "pipeline_stages": stages,
                "asynchronous": asynchronous,
                "steps_in_flight": self.steps_in_flight,
                "draft_tokens": 0 if speculation is None else speculation.k,
                "lookahead_slots": 0 if speculation is None else speculation.lookahead_slots,
                "changed": _changed_settings(limits, self._process),
            }
        )
        weakref.finalize(self, _close, self._process, self._number)

    def _ask(self, verb: str, **values: Any) -> Json:
        found = self._process.ask(verb, self._number, **values)
        self.pool.free_blocks = found["free"]
        self._running, self._waiting = found["running"], found["waiting"]
        return found

    @property
    def unfinished(self) -> int:
        return self._running + self._waiting

    @property
    def num_running(self) -> int:
        return self._running

    @property
    def num_waiting(self) -> int:
        return self._waiting

    def add(self, sequence: Sequence) -> bool:
        if sequence.images or sequence.adapter:
            what = "images" if sequence.images else "LoRA adapters"
            raise InvalidInput(
                f"--scheduler {self._process.source} cannot run requests with {what}: leave --scheduler out"
            )
        name = _name(sequence)
        self._requests[name] = sequence
        self._ask(
            "add",
            number=name,
            prompt_tokens=sequence.prompt_tokens,
            blocks=self._blocks_of(sequence),
            max_tokens=sequence.max_known - sequence.prompt_tokens,
            arrival=sequence.arrival / PS_PER_S,
            priority=sequence.priority,
        )
        return True

    def _blocks_of(self, sequence: Sequence) -> list[int]:
        """Return an id for each block of the request; equal ids mean equal tokens up to the end of the block."""
        content: Content = sequence.table
        keys = map(content.block_key, range(-(-sequence.max_known // self.pool.block_size)))
        ids = self._block_ids
        return [ids[key] if key in ids else ids.setdefault(key, next(self._next_id)) for key in keys]

    def schedule(self, now_ps: int) -> Step:  # noqa: ARG002
        found, step = self._ask("schedule"), Step()
        for name in found["preempted"]:
            r = self._requests[name]
            r.start_again()
            step.preempted.append(r)
        for name, tokens, computed, drafts, yields in found["rows"]:
            r = self._requests[name]
            r.status = Status.RUNNING
            step.rows.append(Row(r, tokens, computed, drafts, yields, r.epoch, computed))
        return step

    def update(self, step: Step) -> list[Sequence]:
        """Count the tokens that the step samples; vLLM decides how many of them each request keeps."""
        sampled = {}
        for r, _, _, drafts, yields, _, _ in step.rows:
            if yields and r.status != Status.FINISHED:
                speculation = self.speculation
                accepted = speculation.count_accepted(r, drafts) if drafts and speculation is not None else 0
                sampled[_name(r)] = 1 + accepted
        found = self._ask("update", sampled=sampled)
        for row in step.rows:
            kept = found["kept"][_name(row.sequence)]
            if kept:
                row.sequence.known += kept
                step.emitted.append((row.sequence, kept))
        step.finished = [self._requests.pop(name) for name in found["finished"]]
        for r in step.finished:
            r.status = Status.FINISHED
        return step.finished

    def abort(self, r: Sequence) -> None:
        self._ask("abort", number=_name(r))
        del self._requests[_name(r)]
        r.status = Status.FINISHED


def _name(sequence: Sequence) -> str:
    """Return a request's id as text, by which vLLM orders requests with the same priority and arrival."""
    return f"{sequence.id:012d}" if isinstance(sequence.id, int) else str(sequence.id)


def use_installed(setup: EngineSetup, source: str) -> EngineSetup:
    """Return the setup with the scheduler of the vLLM at `source` (see `find_process`) instead of the simulator's own.

    Raises InvalidInput if the setup needs features that are not supported with it, or if there is no vLLM at `source`.
    """
    needs = {
        f"the engine's scheduler {setup.policy_name}": setup.policy not in ("vllm-v1", "vllm-v1-async"),
        "a pool of prefill or decode engines": setup.role != "both",
        "data-parallel ranks that run in lockstep": setup.data_parallel_size > 1,
        "KV offloading": "offload" in setup.policy_options,
        "LoRA adapters": "adapters" in setup.policy_options,
        "contiguous KV": setup.kv_contiguous_tokens is not None,
        "draft tokens with pipeline stages on Model Runner V1": setup.speculation is not None
        and setup.limits.pipeline_stages > 1
        and (setup.policy == "vllm-v1" or find_process(source).version_pair < ASYNCHRONOUS_STAGES_SINCE),
    }
    for what, needed in needs.items():
        if needed:
            raise InvalidInput(
                f"--scheduler {source} schedules text requests of vLLM V1 and cannot run {what}: leave --scheduler out"
            )
    find_process(source)
    options = {"source": source, "asynchronous": setup.policy == "vllm-v1-async", "windows": setup.kv_windows}
    limits = replace(setup.limits, max_encoder_tokens=0)
    return replace(setup, policy=InstalledVllm, policy_options=options, limits=limits)


def scheduler_label(source: str) -> str:
    """Return the scheduler's name, such as "vLLM 0.33.0 (installed)", with a remark if this release was not tested."""
    process = find_process(source)
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    untested = "" if process.is_tested else f"; only {oldest} to {newest} were tested"
    return f"vLLM {process.version} ({source}{untested})"


def _changed_settings(limits: SchedulerLimits, process: VllmProcess) -> dict[str, object]:
    """Return the settings of vLLM's SchedulerConfig that differ from its defaults.

    Raises InvalidInput for a setting that this vLLM does not have.
    """
    given = {
        "policy": ("priority" if limits.priority else "fcfs", "fcfs"),
        "long_prefill_token_threshold": (limits.long_prefill_token_threshold, 0),
        "watermark": (limits.watermark, 0.0),
        "max_num_active_seqs": (limits.max_num_active_seqs, None),
        "prefill_schedule_interval": (limits.prefill_schedule_interval, 1),
    }
    changed: dict[str, object] = {name: value for name, (value, default) in given.items() if value != default}
    for name in changed.keys() - process.settings:
        flag = name.replace("_", "-")
        raise InvalidInput(
            f"--{flag} has no effect under vLLM {process.version} ({process.source}), which has no setting {name}: "
            f"leave --{flag} out"
        )
    return changed


def _close(process: VllmProcess, number: int) -> None:
    process.closed.append(number)
