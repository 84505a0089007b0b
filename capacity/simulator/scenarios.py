"""Schedules of written scenarios, step by step: what a policy decides, in the format of the reference schedules.

A scenario names limits, step times and requests by their tokens; the answer lists every step with its rows,
preemptions, completions and free blocks. It runs on the simulator's own engine loop.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import simpy

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.simulator.engine import Engine
from capacity.simulator.engines import Nobody
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content, chained
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.radix import RadixCache, RadixNode
from capacity.simulator.ledger import EngineLedger, Ledger
from capacity.simulator.schedulers import SchedulerLimits, Speculation, Step, make_policy
from capacity.simulator.schedulers import Sequence as Request
from capacity.step import PS_PER_S, AffineStepTimes

SEED_STRIDE = 1_000_003  # of token ids: segment [s, n] is s * SEED_STRIDE + 0 ... n - 1
ANSWER_OFFSET = 500_000  # of output tokens within their seed
FIRST_ANSWER_SEED = 900  # plus the index of the request, unless it says out_seed
MAX_TOKENS = 10_000_000  # of one scenario: a mistyped length must not fill the memory

SCHEDULE_POLICIES = ("vllm-v1", "vllm-v1-async", "vllm-v0", "sglang-radix")


def read_scenarios(path: str | Path) -> Iterator[dict[str, Any]]:
    """Scenarios of a file: one JSON object, or JSON lines, plain or gzipped; a reference line's scenario is taken.

    Raises MalformedFile with the line that cannot be read.
    """
    raw = Path(path)
    try:
        data = raw.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise MalformedFile(path, str(error)) from error
    if not text.strip():
        raise MalformedFile(path, "the file is empty: it must hold at least one scenario")
    for where, line in _documents(text, path):
        scenario = line.get("scenario", line.get("spec", line)) if isinstance(line, dict) else line
        if isinstance(line, dict) and "scenario" not in line and "requests" in line:
            scenario = line  # its own `spec` is speculative decoding
        if not isinstance(scenario, dict):
            raise MalformedFile(
                path, f"a scenario must be an object, not {type(scenario).__name__}", where=where
            )
        yield scenario


def _documents(text: str, path: str | Path) -> Iterator[tuple[str, Any]]:
    try:
        yield "line 1", json.loads(text)
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise MalformedFile(path, f"not JSON: {error}", where=f"line {number}") from error
            yield f"line {number}", document


def schedule_scenario(scenario: Mapping[str, Any], policy: str = "vllm-v1") -> dict[str, Any]:
    """The schedule of one scenario (or the trace of one radix program) as a reference line.

    `status` is "ok", or "stalled" with the reason as `error`. Raises InvalidInput, UnknownName.
    """
    if policy not in SCHEDULE_POLICIES:
        raise UnknownName("scheduling policy", policy, SCHEDULE_POLICIES)
    try:
        if policy == "sglang-radix":
            return {
                "spec": scenario,
                "trace": {"engine": f"capacity {policy}", "ops": _radix_trace(scenario)},
            }
        return _Schedule(scenario, policy).run()
    except KeyError as error:
        raise InvalidInput(f"scenario {scenario.get('name', '')!r}: {error.args[0]!r} is missing") from error
    except (TypeError, IndexError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"scenario {scenario.get('name', '')!r} cannot be read: {error}") from error


class _Schedule:
    """One run of a scenario: the simulator's engine, observed step by step."""

    def __init__(self, scenario: Mapping[str, Any], policy: str) -> None:
        self.scenario = scenario
        self.v0 = policy == "vllm-v0"
        self.policy_name = policy
        self.limits = _limits(scenario, self.v0)
        self.pool = _pool(scenario, self.limits, self.v0)
        self.scheduler: Any = make_policy(policy, self.limits, self.pool, **_options(scenario, self.v0))
        self.steps: list[list[Any]] = []

    def run(self) -> dict[str, object]:
        scenario = self.scenario
        requests, rejected = self._requests()
        status: Literal["ok", "stalled"] = "ok"
        error = None
        if requests:
            times = scenario["step_time"]
            env = simpy.Environment(initial_time=0)
            order = sorted(range(len(requests)), key=lambda i: requests[i].arrival)
            sequences = [requests[i] for i in order]
            for index, r in enumerate(sequences):
                r.index = index
            columns = Ledger(len(sequences))
            engine = Engine(
                env,
                self.scheduler,
                self.pool,
                AffineStepTimes(times["base"], times["per_token"]),
                ledger=EngineLedger(columns, GapCounter()),
                reports=Nobody(),
                new_sequence=lambda index, _: sequences[index],
                pipeline_stages=self.limits.pipeline_stages,
                observer=self._observe,
            )
            env.process(engine.run())
            engine.feed(range(len(sequences)), [r.arrival for r in sequences])
            env.run()
            if engine.account().stalled_by is not None:
                status, error = "stalled", engine.account().stalled_by
        return {
            "engine": f"capacity {self.policy_name}",
            "scenario": scenario,
            "status": status,
            "error": error,
            "rejected": rejected,
            "steps": self.steps,
        }

    def _observe(self, step: Step, engine: Engine) -> None:  # noqa: ARG002
        if self.v0 and not step.rows and not step.finished:
            return  # a call that only preempted is no step in V0
        columns = 3 if self.v0 else 4
        rows = [[r.sequence.id, r.tokens, r.computed, r.drafts][:columns] for r in step.rows]
        preempted = [r.id for r in step.preempted]
        finished = [r.id for r in step.finished]
        self.steps.append(
            [step.start / PS_PER_S, step.end / PS_PER_S, rows, preempted, finished, self.pool.free_blocks]
        )

    def _requests(self) -> tuple[list[Request], list[Any]]:
        """The requests that the front-end lets in, and the ids of those that it turns away."""
        scenario, max_model_len = self.scenario, self.limits.max_model_len
        interned: dict[tuple[int, tuple[int, ...]], int] = {}
        requests: list[Request] = []
        rejected: list[Any] = []
        for index, row in enumerate(scenario["requests"]):
            prompt = _tokens(row["prompt"])
            outputs = row["max_tokens"]
            if outputs < 1:
                raise InvalidInput(f"request {row['id']!r}: max_tokens must be at least 1, not {outputs}")
            if not prompt or (len(prompt) >= max_model_len and not self.v0):
                rejected.append(row["id"])
                continue
            end = max(len(prompt) + 1, min(len(prompt) + outputs, max_model_len))
            seed = row.get("out_seed", FIRST_ANSWER_SEED + index)
            keys = chained(prompt + _answer(seed, end - len(prompt)), self.pool.block_size, interned)
            requests.append(
                Request(
                    index,
                    id=row["id"],
                    arrival=round(row["arrival"] * PS_PER_S),
                    prompt_tokens=len(prompt),
                    max_known=end,
                    priority=row.get("priority", 0),
                    table=self.pool.table(Content(("private", index), keys, range(1, len(keys) + 1))),
                )
            )
        return requests, rejected


def _limits(scenario: Mapping[str, Any], v0: bool) -> SchedulerLimits:
    limits = {
        name: scenario[name]
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "enable_chunked_prefill",
            "long_prefill_token_threshold",
            "watermark",
            "reserve_full_isl",
            "max_num_active_seqs",
            "prefill_schedule_interval",
        )
        if name in scenario
    }
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        if not isinstance(limits.get(name, 0), int) or limits.get(name, 1) < 1:
            raise InvalidInput(f"{name} must be a whole number of at least 1, not {limits[name]!r}")
    return SchedulerLimits(
        **limits,
        priority=scenario.get("policy") == "priority",
        pipeline_stages=1 if v0 else scenario.get("pp", 1),
    )


def _pool(scenario: Mapping[str, Any], limits: SchedulerLimits, v0: bool) -> BlockPool | ContentPool:
    blocks, block_size = scenario["num_blocks"], scenario["block_size"]
    if blocks < 1 or block_size < 1:
        raise InvalidInput(f"num_blocks and block_size must be at least 1, not {blocks} and {block_size}")
    caching = scenario.get("enable_prefix_caching", True)
    if v0:
        return ContentPool(blocks, block_size, prefix_caching=caching)
    windows: tuple[int | None, ...] = (None,)
    if scenario.get("sliding_window"):
        windows = (scenario["sliding_window"],)
    if scenario.get("hybrid_window"):
        windows = (None, scenario["hybrid_window"])
    return BlockPool(
        blocks,
        block_size,
        prefix_caching=caching,
        windows=windows,
        max_model_len=limits.max_model_len,
        in_flight_tokens=limits.max_num_batched_tokens,
    )


def _options(scenario: Mapping[str, Any], v0: bool) -> dict[str, object]:
    if v0:
        return {
            "preemption_mode": scenario.get("preemption_mode", "recompute"),
            "num_cpu_blocks": scenario.get("num_cpu_blocks", 0),
        }
    spec = scenario.get("spec")
    if not spec:
        return {}
    slots = spec["k"] if spec["lookahead"] else 0
    return {"speculation": Speculation(spec["k"], tuple(spec["accept"]), lookahead_slots=slots)}


def _tokens(segments: Sequence[Sequence[Any]]) -> list[int]:
    """Token ids of a prompt: [s, n] is a text, ["o", s, n] the first n output tokens of seed s."""
    tokens: list[int] = []
    for segment in segments:
        count = segment[-1]
        if count < 0 or len(tokens) + count > MAX_TOKENS:
            raise InvalidInput(f"segment {list(segment)!r}: its length must be from 0 to {MAX_TOKENS:,}")
        if segment[0] == "o":
            tokens += _answer(segment[1], count)
        else:
            first = segment[0] * SEED_STRIDE
            tokens += range(first, first + count)
    return tokens


def _answer(seed: int, count: int) -> list[int]:
    first = seed * SEED_STRIDE + ANSWER_OFFSET
    return list(range(first, first + count))


def _radix_trace(program: Mapping[str, Any]) -> list[dict[str, object]]:
    """Every operation of a radix program with its result and the tree after it."""
    cache = RadixCache(program["page_size"])
    locked: dict[str, list[RadixNode]] = {}
    trace: list[dict[str, object]] = []
    for op in program["ops"]:
        verb, argument = op[0], op[1]
        result: int | None = None
        if verb == "evict":
            result = cache.evict(argument)
        elif verb == "match":
            result = cache.match(tuple(_tokens(argument)))[0]
        elif verb == "insert":
            result = cache.insert(tuple(_tokens(argument)))
        elif verb == "lock":
            node = cache.match(tuple(_tokens(argument)))[1]
            cache.lock(node)
            locked.setdefault(json.dumps(argument), []).append(node)
        elif verb == "unlock":
            nodes = locked.get(json.dumps(argument))
            if not nodes:
                raise InvalidInput(f"unlock of {argument}: it is not locked")
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
