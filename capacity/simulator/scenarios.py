"""Step-by-step schedules of scenarios from a file, in the format of schedules that were recorded from real engines.

A scenario defines scheduler limits, step times and requests with their tokens. The schedule lists every step with its
rows, preemptions, completions and free blocks. It is computed by the simulator's own engines, compiled or readable.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import simpy

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.external_files import parse_json, read_text
from capacity.deployment.engines import find_engine
from capacity.simulator.core import library
from capacity.simulator.core.logged_run import ContentRequest, run_with_log
from capacity.simulator.engine import Engine
from capacity.simulator.engines import NullReports
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.installed_vllm.policy import scheduler_label, use_installed
from capacity.simulator.kv_cache.content import Content, chain_blocks
from capacity.simulator.kv_cache.radix import RadixCache, RadixNode
from capacity.simulator.ledger import EngineLedger, Ledger
from capacity.simulator.members import EngineLoop, parse_engine_loop
from capacity.simulator.scenario_checks import INTEGER_FIELDS, check_scenario, check_segment
from capacity.simulator.schedulers import SchedulerLimits, Speculation, Step, find_scheduler
from capacity.simulator.schedulers import Sequence as Request
from capacity.simulator.schedulers.rules import NEWEST_RULES, SchedulingRules, rules_without
from capacity.simulator.setup import EngineSetup, make_pool, make_scheduler
from capacity.step import PS_PER_S, AffineStepTimes

SEED_STRIDE = 1_000_003  # of token ids: segment [s, n] is s * SEED_STRIDE + 0 ... n - 1
ANSWER_OFFSET = 500_000  # of output tokens within their seed's ids
FIRST_ANSWER_SEED = 900  # plus the index of the request, unless out_seed is set
MAX_BLOCKS = 10_000_000
MAX_TOKENS = 10_000_000  # of one scenario, so that a mistyped length does not fill the memory

SCHEDULE_POLICIES = ("vllm-v1", "vllm-v1-async", "vllm-v0", "sglang-radix")


def read_scenarios(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield scenarios from a file: one JSON object, or JSON lines, plain or gzipped. A line may also be a recorded
    schedule of a real engine, which contains its scenario. Raises MalformedFile with the number of the invalid line."""
    text = read_text(path, "a scenario")
    if not text.strip():
        raise MalformedFile(path, "the file is empty: it must contain at least one scenario")
    for where, line in _documents(text, path):
        scenario = line.get("scenario", line.get("spec", line)) if isinstance(line, dict) else line
        if isinstance(line, dict) and "scenario" not in line and "requests" in line:
            scenario = line  # here `spec` is speculative decoding
        if not isinstance(scenario, dict):
            raise MalformedFile(
                path, f"a scenario must be an object, not {type(scenario).__name__}", where=where
            )
        yield scenario


def _documents(text: str, path: str | Path) -> Iterator[tuple[str, Any]]:
    try:
        yield "line 1", parse_json(text, path)
        return
    except MalformedFile:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                document = parse_json(line, path)
            except MalformedFile as error:
                raise MalformedFile(path, error.problem, where=f"line {number}") from None
            yield f"line {number}", document


def schedule_scenario(
    scenario: Mapping[str, Any],
    policy: str | None = None,
    *,
    engine: str | None = None,
    engine_loop: str = "auto",
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Return the schedule of a scenario, or the trace of operations on a radix cache, in the format of recorded files.

    `status` is "ok", or "stalled" with the reason as `error`. `engine`: release whose scheduling rules apply, such as
    "vllm@0.22" (None: vLLM 0.33.0). `policy`: name of a scheduler (None: the one of `engine`, or "vllm-v1").
    `engine_loop`: see `simulate`; both loops give the same schedule. `scheduler`: location of a vLLM whose scheduler
    decides (see `find_process`), with policy "vllm-v1" or "vllm-v1-async". Raises InvalidInput, UnknownName.
    """
    loop = parse_engine_loop(engine_loop)
    if scheduler is not None and engine is not None:
        raise InvalidInput(
            f"--scheduler {scheduler} and --engine {engine} both name a scheduler: leave one out"
        )
    if scheduler is not None and loop == "core":
        raise InvalidInput(
            f"the compiled engines cannot run --scheduler {scheduler}: leave --engine-loop out"
        )
    release = None if engine is None else find_engine(engine)
    policy = policy or ("vllm-v1" if release is None else release.scheduler)
    rules = NEWEST_RULES if release is None else rules_without(release.missing_scheduling_rules)
    if policy not in SCHEDULE_POLICIES:
        raise UnknownName("scheduling policy", policy, SCHEDULE_POLICIES)
    if release is not None:
        own = find_scheduler(release.scheduler)
        if policy not in (release.scheduler, own.asynchronous, own.synchronous):
            raise InvalidInput(f"{release.label} schedules with {release.scheduler}, not with {policy}")
    check_scenario(scenario)
    try:
        if policy == "sglang-radix":
            return {
                "spec": scenario,
                "trace": {"engine": f"capacity {policy}", "ops": _radix_trace(scenario)},
            }
        return _Schedule(scenario, policy, rules, scheduler).run(loop)
    except KeyError as error:
        raise InvalidInput(f"scenario {scenario.get('name', '')!r}: {error.args[0]!r} is missing") from error
    except (TypeError, IndexError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"scenario {scenario.get('name', '')!r} cannot be read: {error}") from error


class _Schedule:
    """One run of a scenario on one engine."""

    def __init__(
        self, scenario: Mapping[str, Any], policy: str, rules: SchedulingRules, scheduler: str | None
    ) -> None:
        self.scenario = scenario
        self.v0 = policy == "vllm-v0"
        self.setup = _make_setup(scenario, policy, rules)
        self.label = f"capacity {policy}"
        self.installed = scheduler is not None
        if scheduler is not None:
            self.setup = use_installed(self.setup, scheduler)
            self.label = f"capacity with {scheduler_label(scheduler)}"
        self.steps: list[list[Any]] = []
        self.stalled_by: str | None = None

    def run(self, engine_loop: EngineLoop) -> dict[str, object]:
        asked, rejected = self._requests()
        asked.sort(key=lambda r: r.arrival_ps)
        loads = engine_loop == "auto" and not self.installed and library.load() is not None
        compiled = engine_loop == "core" or loads
        if asked:
            (self._run_core if compiled else self._run_readable)(asked)
        return {
            "engine": self.label,
            "scenario": self.scenario,
            "status": "ok" if self.stalled_by is None else "stalled",
            "error": self.stalled_by,
            "rejected": rejected,
            "steps": self.steps,
        }

    def _run_readable(self, asked: list[ContentRequest]) -> None:
        pool = make_pool(self.setup)
        sequences = [
            Request(
                index,
                id=r.id,
                arrival=r.arrival_ps,
                prompt_tokens=r.prompt_tokens,
                max_known=r.max_known,
                priority=r.priority,
                table=pool.table(Content(("private", index), r.keys, range(1, len(r.keys) + 1))),
            )
            for index, r in enumerate(asked)
        ]
        env = simpy.Environment(initial_time=0)
        engine = Engine(
            env,
            self.setup,
            make_scheduler(self.setup, pool),
            pool,
            ledger=EngineLedger(Ledger(len(asked)), GapCounter()),
            reports=NullReports(),
            new_sequence=lambda index, _: sequences[index],
            observer=self._observe,
        )
        env.process(engine.run())
        engine.feed(range(len(asked)), [r.arrival_ps for r in asked])
        env.run()
        self.stalled_by = engine.account().stalled_by

    def _observe(self, step: Step, engine: Engine) -> None:
        self._record_step(
            (step.start, step.end),
            [[r.sequence.id, r.tokens, r.computed, r.drafts] for r in step.rows],
            [r.id for r in step.preempted],
            [r.id for r in step.finished],
            engine.pool.free_blocks,
        )

    def _run_core(self, asked: list[ContentRequest]) -> None:
        run = run_with_log(self.setup, asked, turns_away=not self.v0)
        for step in run.steps:
            rows = [[asked[row[0]].id, *row[1:]] for row in step.rows]
            preempted, finished = ([asked[r].id for r in some] for some in (step.preempted, step.finished))
            self._record_step((step.start_ps, step.end_ps), rows, preempted, finished, step.free_blocks)
        self.stalled_by = run.stalled_by

    def _record_step(
        self,
        times_ps: tuple[int, int],
        rows: list[list[Any]],
        preempted: list[Any],
        finished: list[Any],
        free_blocks: int,
    ) -> None:
        if self.v0 and not rows and not finished:
            return  # in V0 a call that only preempts is not a step
        start_s, end_s = (at_ps / PS_PER_S for at_ps in times_ps)
        columns = 3 if self.v0 else 4
        self.steps.append([start_s, end_s, [row[:columns] for row in rows], preempted, finished, free_blocks])

    def _requests(self) -> tuple[list[ContentRequest], list[Any]]:
        """Return the requests that the front end admits, and the ids of those that it rejects."""
        scenario, max_model_len = self.scenario, self.setup.limits.max_model_len
        interned: dict[tuple[int, tuple[int, ...]], int] = {}
        requests: list[ContentRequest] = []
        rejected: list[Any] = []
        for index, row in enumerate(scenario["requests"]):
            prompt = _prompt_token_ids(row["prompt"])
            outputs = row["max_tokens"]
            if not 1 <= outputs <= MAX_TOKENS:
                raise InvalidInput(
                    f"request {row['id']!r}: max_tokens must be at least 1 and at most {MAX_TOKENS:,}, not {outputs}"
                )
            if not prompt or (len(prompt) >= max_model_len and not self.v0):
                rejected.append(row["id"])
                continue
            end = max(len(prompt) + 1, min(len(prompt) + outputs, max_model_len))
            seed = row.get("out_seed", FIRST_ANSWER_SEED + index)
            requests.append(
                ContentRequest(
                    id=row["id"],
                    arrival_ps=round(row["arrival"] * PS_PER_S),
                    prompt_tokens=len(prompt),
                    max_known=end,
                    priority=row.get("priority", 0),
                    keys=chain_blocks(
                        prompt + _output_token_ids(seed, end - len(prompt)), self.setup.block_size, interned
                    ),
                )
            )
        return requests, rejected


def _make_setup(scenario: Mapping[str, Any], policy: str, rules: SchedulingRules) -> EngineSetup:
    v0 = policy == "vllm-v0"
    limits, blocks, block_size = (
        _make_limits(scenario, v0, rules),
        scenario["num_blocks"],
        scenario["block_size"],
    )
    if blocks < 1 or block_size < 1:
        raise InvalidInput(f"num_blocks and block_size must be at least 1, not {blocks} and {block_size}")
    if blocks > MAX_BLOCKS:
        raise InvalidInput(f"num_blocks must be at most {MAX_BLOCKS:,}, not {blocks}")
    times = scenario["step_time"] if scenario["requests"] else {"base": 0, "per_token": 0}
    windows: tuple[int | None, ...] = (None,)
    options, speculation, spec = {}, None, scenario.get("spec")
    if v0:
        defaults = {"preemption_mode": "recompute", "num_cpu_blocks": 0}
        options = {name: scenario.get(name, default) for name, default in defaults.items()}
    else:
        if scenario.get("hybrid_window"):
            windows = (None, scenario["hybrid_window"])
        elif scenario.get("sliding_window"):
            windows = (scenario["sliding_window"],)
        if spec:
            slots = spec["k"] if spec["lookahead"] else 0
            speculation = Speculation(spec["k"], tuple(spec["accept"]), lookahead_slots=slots)
    return EngineSetup(
        step_times=AffineStepTimes(times["base"], times["per_token"]),
        num_blocks=blocks,
        block_size=block_size,
        policy=policy,
        policy_options=options,
        speculation=speculation,
        limits=limits,
        enable_prefix_caching=scenario.get("enable_prefix_caching", True),
        kv_windows=windows,
    )


def _make_limits(scenario: Mapping[str, Any], v0: bool, rules: SchedulingRules) -> SchedulerLimits:
    names = {*INTEGER_FIELDS, "enable_chunked_prefill", "watermark", "reserve_full_isl"}
    names &= {field.name for field in fields(SchedulerLimits)}
    limits = {name: scenario[name] for name in names if name in scenario}
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        if not isinstance(limits.get(name, 0), int) or limits.get(name, 1) < 1:
            raise InvalidInput(f"{name} must be a whole number of at least 1, not {limits[name]!r}")
    return SchedulerLimits(
        **limits,
        priority=scenario.get("policy") == "priority",
        pipeline_stages=1 if v0 else scenario.get("pp", 1),
        rules=rules,
    )


def _prompt_token_ids(segments: Sequence[Sequence[Any]]) -> list[int]:
    """Return the token ids of a prompt. Segment [s, n] is n tokens of the text with seed s, ["o", s, n] is the first n
    output tokens with seed s."""
    tokens: list[int] = []
    for segment in segments:
        count = check_segment(segment)
        if count < 0 or len(tokens) + count > MAX_TOKENS:
            raise InvalidInput(f"segment {list(segment)!r}: its length must be from 0 to {MAX_TOKENS:,}")
        if segment[0] == "o":
            tokens += _output_token_ids(segment[1], count)
        else:
            first = segment[0] * SEED_STRIDE
            tokens += range(first, first + count)
    return tokens


def _output_token_ids(seed: int, count: int) -> list[int]:
    first = seed * SEED_STRIDE + ANSWER_OFFSET
    return list(range(first, first + count))


def _radix_trace(program: Mapping[str, Any]) -> list[dict[str, object]]:
    """Run operations on a radix cache; return each one with its result and the state of the tree after it."""
    cache = RadixCache(program["page_size"])
    locked: dict[str, list[RadixNode]] = {}
    trace: list[dict[str, object]] = []
    for op in program["ops"]:
        verb, argument = op[0], op[1]
        result: int | None = None
        if verb == "evict":
            result = cache.evict(argument)
        elif verb == "match":
            result = cache.match(tuple(_prompt_token_ids(argument)))[0]
        elif verb == "insert":
            result = cache.insert(tuple(_prompt_token_ids(argument)))
        elif verb == "lock":
            node = cache.match(tuple(_prompt_token_ids(argument)))[1]
            cache.lock(node)
            locked.setdefault(json.dumps(argument), []).append(node)
        elif verb == "unlock":
            nodes = locked.get(json.dumps(argument))
            if not nodes:
                raise InvalidInput(f"cannot unlock {argument}: it is not locked")
            cache.unlock(nodes.pop())
        else:
            raise UnknownName("radix operation", str(verb), ("match", "insert", "lock", "unlock", "evict"))
        trace.append(
            {
                "op": op,
                "result": result,
                "evictable": cache.evictable_tokens,
                "protected": cache.protected_tokens,
                "total": cache.total_tokens,
                "tree": [[depth, n.tokens[0], len(n.tokens), n.locks] for depth, n in cache.walk()],
            }
        )
    return trace
