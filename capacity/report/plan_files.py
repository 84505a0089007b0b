"""A plan as a folder of files: report, launch commands, manifest, benchmark, comparison, and the plan as JSON."""

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from capacity.answers.engine_setup import make_workload
from capacity.base.command_text import command_line
from capacity.base.errors import InvalidInput
from capacity.base.output_files import write_file
from capacity.deployment import Traffic
from capacity.deployment.command_words import PORT, PROXY_PORT, Launch
from capacity.deployment.launch_writers import ENGINES, WITHOUT_API, engine_name, is_launched, launch_command
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import weight_bytes
from capacity.planning.records import Plan, Ranked
from capacity.planning.space import Candidate
from capacity.report.benchmark import RandomArrivals, bench_command
from capacity.report.deploy_files import README, deploy_files
from capacity.report.fronts import proxy_command, router_command
from capacity.report.kubernetes import kubernetes_disaggregated, kubernetes_manifest, pod_addresses
from capacity.report.plan_summary import plan_view
from capacity.report.replicas import replica_noun
from capacity.report.sheet import answer_html
from capacity.report.tables import null_infinities
from capacity.report.views.layout import view_parts
from capacity.workload import Workload, parse_slos, write_timed_trace

REPLAY_S = 900.0  # busiest seconds of a longer trace that the benchmark replays
DEPLOY = "deploy"  # folder of the files for tools that deploy
RESULT = "result.json"
ONE_RESULT = "result-one-replica.json"


def write_plan_files(
    plan: Plan, folder: Path, *, model: str | ModelSpec, traffic: Traffic
) -> tuple[Path, ...]:
    """Write the files into `folder`, created if missing, and return their paths. Raises InvalidInput."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts, arrivals = dict[str, str](), list[Path]()
        if plan.best is not None:
            files = _PlanFileWriter(plan=plan, best=plan.best, folder=folder, model=model, traffic=traffic)
            texts, arrivals = files.texts(), files.arrivals
        shown = [(name, text) for name, text in texts.items() if "/" not in name or name.endswith(README)]
        texts |= {
            "report.html": answer_html(plan, view_parts(plan_view(plan), plan), files=shown),
            "plan.json": json.dumps(null_infinities(plan.to_dict()), indent=2, allow_nan=False),
        }
        for name in texts:
            (folder / name).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write to {folder}: {error.strerror}") from None
    for name, text in texts.items():
        write_file(folder / name, text)
    return (*(folder / name for name in texts), *arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanFileWriter:
    """Writer of the file texts of a plan's best deployment; for a trace, it also writes the arrivals into `folder`."""

    plan: Plan
    best: Ranked
    folder: Path
    model: str | ModelSpec
    traffic: Traffic
    arrivals: list[Path] = field(default_factory=list)  # files written with the requests of a trace

    @property
    def candidate(self) -> Candidate:
        return self.best.candidate

    @property
    def spec(self) -> ModelSpec:
        return self.model if isinstance(self.model, ModelSpec) else load_model(self.model)

    @property
    def model_id(self) -> str:
        """Return the Hugging Face id with which engines load the model; the model's name if it has none."""
        return self.spec.hf_id or self.spec.name

    def texts(self) -> dict[str, str]:
        """Return the text of each file by name: launch commands, router or proxy, manifest, benchmark and comparison.

        If the plan's engine is one of `ENGINES`, the files launch each of these engines, else only the plan's engine.
        Empty if the engine cannot be launched (a baseline).
        """
        texts: dict[str, str] = {}
        candidate = self.candidate
        own = candidate.pool.engine
        if not is_launched(own):
            return texts
        for engine in ENGINES if engine_name(own) in ENGINES else (own,):
            texts |= self._launches(engine)
        if engine_name(own) in WITHOUT_API:
            return texts
        if candidate.prefill is None and candidate.replicas > 1:
            hosts = [f"replica-{number}:{PORT}" for number in range(candidate.replicas)]
            router = router_command(candidate.pool.engine, candidate.router, hosts)
            texts["router.sh"] = _script("router of all replicas; send requests to it", router)
        for_tools = deploy_files(
            self.spec.name,
            self.model_id,
            self._planned_launches,
            candidate.pools,
            slos=parse_slos(self.plan.slos),
            weights_gib=self._weights_gib,
            in_flight=self._in_flight,
        )
        texts |= {f"{DEPLOY}/{name}": text for name, text in for_tools.items()}
        return texts | {"kubernetes.yaml": self._manifest()} | self._benchmarks()

    @property
    def _weights_gib(self) -> float:
        return weight_bytes(self.spec, self.spec.checkpoint) / 2**30

    @property
    def _in_flight(self) -> float:
        """Return the mean number of requests in flight at the planned load."""
        return self.best.trial.requests_per_s * self.best.trial.mean_e2e_s

    def _launches(self, engine: str) -> dict[str, str]:
        texts, pools = {}, self.candidate.pools
        planned = engine in (self.candidate.pool.engine, engine_name(self.candidate.pool.engine))
        launches = (
            self._planned_launches
            if planned
            else [launch_command(engine, self.model_id, pool) for pool in pools]
        )
        for pool, launch in zip(pools, launches, strict=True):
            kind = f"-{pool.role}" * (pool.role != "both")
            header = f"one of {pool.replicas} {replica_noun(pool.role)}s: {self.candidate.label}"
            header += f"; not simulated on {engine}" * (not planned)
            texts[f"launch-{engine_name(engine)}{kind}.sh"] = _script(header, launch)
        if self.candidate.prefill is not None:
            hosts = ([f"{p.role}-{number}:{PORT}" for number in range(p.replicas)] for p in pools)
            proxy = proxy_command(engine, *hosts)
            texts[f"launch-{engine}-proxy.sh"] = _script(
                "proxy of all prefill and decode servers; send requests to it", proxy
            )
        return texts

    def _manifest(self) -> str:
        name, pools = self.spec.name, self.candidate.pools
        if self.candidate.prefill is None:
            replicas = self.candidate.replicas
            one = (self._planned_launches[0], pools[0], replicas)
            in_flight = self._in_flight / replicas
            return kubernetes_manifest(name, *one, weights_gib=self._weights_gib, in_flight=in_flight)
        proxy = proxy_command(pools[0].engine, *(pod_addresses(name, pool) for pool in pools))
        return kubernetes_disaggregated(
            name, self._planned_launches, pools, proxy, weights_gib=self._weights_gib
        )

    @property
    def _planned_launches(self) -> tuple[Launch, ...]:
        """Return the launch commands that the plan contains, one for each role (prefill, decode, or both)."""
        return tuple(
            Launch(words=tuple(shlex.split(line.command)), notes=line.notes, files=tuple(line.files.items()))
            for line in self.best.launch
        )

    def _benchmarks(self) -> dict[str, str]:
        """Return the texts of `benchmark.sh` (all replicas) and `compare.sh` (one replica against the prediction).

        The comparison covers one replica because `capacity compare` replays a single engine. With n replicas, the
        comparison uses every n-th arrival. Under random arrivals and round-robin routing, each replica receives every
        n-th request, so the burstiness of its arrivals is n times that of all arrivals.
        """
        candidate = self.candidate
        longest = self.spec.max_position_embeddings
        limit = candidate.pool.max_model_len
        whole = make_workload(self.traffic, limit if isinstance(limit, int) else longest)
        everything = whole if self.traffic.trace is None else select_busiest_part(whole)
        bench = self._benchmark_launch(everything, replicas=candidate.replicas, result=RESULT)
        header = "benchmark all replicas with the plan's arrivals"
        if len(everything) < len(whole):
            part = f"{len(everything):,} of {len(whole):,} requests"
            header += f"; the busiest {REPLAY_S / 60:.0f} minutes of the trace, {part}"
        texts = {"benchmark.sh": _script(header, bench)}
        if candidate.prefill is not None:
            return texts
        if candidate.replicas == 1:
            header = "compare the server's results with the prediction"
            texts["compare.sh"] = f"#!/bin/sh\n# {header}\n{self._compare(RESULT)}\n"
            return texts
        share = everything.select(np.arange(0, len(everything), candidate.replicas))
        one = self._benchmark_launch(share, replicas=1, result=ONE_RESULT)
        nth = f"1 in {candidate.replicas} arrivals"
        header = f"benchmark one replica with {nth}, then compare the result with the prediction"
        texts["compare.sh"] = _script(header, one) + f"{self._compare(ONE_RESULT)}\n"
        return texts

    def _compare(self, result: str) -> str:
        named = self.model if isinstance(self.model, str) else self.model_id
        options = {"model": named, **self.candidate.pool.model_dump(exclude_defaults=True)}
        return command_line("compare", result, options)

    def _benchmark_launch(self, workload: Workload, *, replicas: int, result: str) -> Launch:
        """Return the command that sends `workload` to `replicas` replicas and writes to the file `result`."""
        pool = self.candidate.pool
        several = self.candidate.prefill is not None or replicas > 1
        return bench_command(
            self.model_id,
            self._arrivals(workload, replicas, result),
            slos=parse_slos(self.plan.slos),
            port=PROXY_PORT if several else PORT,
            result=result,
            metadata=[("gpu", pool.gpu), ("tp", pool.tensor_parallel_size), ("replicas", replicas)],
        )

    def _arrivals(self, workload: Workload, replicas: int, result: str) -> RandomArrivals | str:
        """Return random arrivals; for a trace or lengths vLLM cannot draw, write a trace and return flags for it."""
        plan, traffic, in_flight = self.plan, self.traffic, self.traffic.concurrency
        in_flight = in_flight and max(round(in_flight * replicas / self.candidate.replicas), 1)
        if traffic.trace is not None or traffic.length_distribution != "uniform":
            file = result.replace("result", "arrivals").replace(".json", ".jsonl")
            path = self.folder / file
            self.arrivals.append(path)
            words = write_timed_trace(workload, path).replace(str(path), file)
            return words if in_flight is None else f"{words} --max-concurrency {in_flight}"
        return RandomArrivals(
            requests=len(workload),
            request_rate_per_s=plan.requests_per_s * len(workload) / plan.requests,
            input_tokens=plan.input_tokens,
            output_tokens=plan.output_tokens,
            burstiness=traffic.burstiness * self.candidate.replicas / replicas,
            range_ratio=traffic.random_range_ratio,
            prefix_tokens=traffic.random_prefix_len,
            max_concurrency=in_flight,
        )


def select_busiest_part(workload: Workload) -> Workload:
    """Return the `REPLAY_S` seconds with most tokens; the whole workload if it is shorter or has no arrival times."""
    arrival_s = workload.arrival_s
    if workload.is_closed_loop or arrival_s[-1] - arrival_s[0] <= REPLAY_S:
        return workload
    tokens = np.concatenate(([0], np.cumsum(workload.prompt_tokens + workload.output_tokens)))
    ends = np.searchsorted(arrival_s, arrival_s + REPLAY_S)
    first = int(np.argmax(tokens[ends] - tokens[: len(arrival_s)]))
    part = workload.select(np.arange(first, ends[first]))
    return replace(part, arrival_s=part.arrival_s - part.arrival_s[0])


def _script(header: str, launch: Launch) -> str:
    """Return a shell script that writes the files that the command reads, and runs the command."""
    lines = ["#!/bin/sh", f"# {header}", *(f"# {note}" for note in launch.notes)]
    for name, text in launch.files:
        lines += [f"cat > {name} <<'EOF'", text.rstrip("\n"), "EOF"]
    return "\n".join([*lines, launch.text]) + "\n"
