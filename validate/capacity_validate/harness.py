"""`capacity validate`: measure this device, say how wrong the step model was, calibrate it, and say so again."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from capacity.base.errors import CapacityError, InvalidInput, UnsupportedModel
from capacity.hardware import HardwareProfile, dump_profile, parse_profile
from capacity.model import ModelSpec
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import HostTime
from capacity_validate.calibrating import FittedProfile, fit_profile, write_profile
from capacity_validate.campaigns import (
    Campaign,
    DevicePlan,
    ServingStage,
    TransformerStage,
    load_campaign,
    ordered_cases,
)
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog, read_measurements
from capacity_validate.devices import (
    DeviceFacts,
    clock_remarks,
    clocks_now,
    find_device,
    match_profile,
    require_memory,
    require_torch,
)
from capacity_validate.findings import Finding
from capacity_validate.fitting import FamilyFit, Refused, calibrated_profile, fit_families
from capacity_validate.predictions import FAMILY, Predictor
from capacity_validate.report_data import (
    ServingComparison,
    ValidationReport,
    class_errors,
    median_error,
    not_timed,
)
from capacity_validate.residuals import step_evidence
from capacity_validate.review import case_rows, roles_of
from capacity_validate.runner import (
    CaseRunner,
    DeviceLost,
    Progress,
    RunOutcome,
    first_line,
    is_device_lost,
    is_out_of_memory,
)
from capacity_validate.timing import RunClock, run_clock_for

TOLERANCE_TTFT = 0.25
TOLERANCE_TPOT = 0.15
TOLERANCE_TPOT_CPU = 0.25  # a shared machine's noise
KERNEL_SHARE = 0.6  # of the budget; the rest is for serving, speculation and memory
MEMORY_SHARE = 0.6  # of what is free, for the model's weights
CACHE_SHARE = 0.25  # of what is free, for its KV cache
DEFAULT_OUT = "capacity-validation"
MEASUREMENTS = "measurements.jsonl"
NOISY = 0.5
COLLECTIVES_S = 20.0  # to start processes that each import torch
REPORT_S = 2.0  # of CPU time, to fit, draw and write
SPECULATIVE_STEPS = 2.5  # steps of the target for each token of a speculative run and the plain one beside it


def validate(
    device: str = "auto",
    campaign: str = "quick",
    *,
    budget_s: float | None = None,
    out: str | Path = DEFAULT_OUT,
    gpu: str | None = None,
    profiles: Sequence[str] = (),
    tolerance_ttft: float = TOLERANCE_TTFT,
    tolerance_tpot: float | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> ValidationReport:
    """Run a campaign on a device and judge the step model by it.

    Writes `out`/measurements.jsonl as it goes (a second run continues it), then report.json, report.html and the
    calibrated profile. `gpu` names the profile where the card's name does not; `budget_s` overrides the campaign's.
    Raises InvalidInput in one line where there is no such device, driver, torch or profile.
    """
    started = time.monotonic()
    for name, value in (("--tolerance-ttft", tolerance_ttft), ("--tolerance", tolerance_tpot)):
        if value is not None and not 0 <= value < math.inf:
            raise InvalidInput(f"{name} is {value}: must be a share such as 0.15, at least 0")
    facts = find_device(device, threads=threads)
    require_memory(facts)
    chosen = load_campaign(campaign)
    run = _Run(
        torch=require_torch(),
        facts=facts,
        campaign=chosen,
        folder=Path(out),
        deadline=started + (budget_s or chosen.budget_s),
        seed=seed,
        progress=progress,
    )
    run.open(gpu=gpu, profiles=tuple(profiles))
    run.measure()
    tpot = tolerance_tpot
    if tpot is None:
        tpot = TOLERANCE_TPOT_CPU if facts.kind == "cpu" else TOLERANCE_TPOT
    report = run.report(tolerance_ttft=tolerance_ttft, tolerance_tpot=tpot, started=started)
    run.write(report)
    return report


@dataclass(slots=True)
class _Run:
    """State of one run, stage after stage; each stage leaves what it found here."""

    torch: Any
    facts: DeviceFacts
    campaign: Campaign
    folder: Path
    deadline: float
    seed: int
    progress: Progress | None
    profile: HardwareProfile = field(init=False)
    log: MeasurementLog = field(init=False)
    model_spec: ModelSpec | None = None
    model: Any = None
    outcome: RunOutcome | None = None
    findings: list[Finding] = field(default_factory=list)
    served: list[Any] = field(default_factory=list)
    speculation: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    slowdown: float = 1.0  # wall time over CPU time: what neighbours on the machine take
    broken: list[str] = field(default_factory=list)
    interrupted: bool = False
    extra_depth: int | None = None
    found: FittedProfile | None = None
    _fitted: dict[int, tuple[list[FamilyFit], list[Refused]]] = field(default_factory=dict)

    @property
    def plan(self) -> DevicePlan:
        return self.campaign.plan(self.facts.kind)

    @property
    def on_gpu(self) -> bool:
        return self.facts.kind == "cuda"

    @property
    def generator(self) -> Any:
        return self.torch.Generator(device=self.facts.torch_name).manual_seed(self.seed)

    # open

    def open(self, *, gpu: str | None, profiles: tuple[str, ...]) -> None:
        """Profile and measurement file. A continued file keeps the roofs that it was begun with."""
        self.remarks += self.facts.remarks
        path = self.folder / MEASUREMENTS
        if self.on_gpu:
            self.profile, remarks = match_profile(self.facts, gpu=gpu, directories=profiles)
            self.remarks += remarks
            self.torch.cuda.set_device(self.facts.torch_name)
        else:
            self.torch.set_num_threads(self.facts.compute_units)
            self.profile = self._cpu_profile(path)
        header: dict[str, Any] = {"environment": self.environment(), "profile": self.profile.name}
        if not self.on_gpu:
            header["profile_toml"] = dump_profile(self.profile)
        if self.plan.transformer is not None:
            header["model"] = self.plan.transformer.model
        self.log = MeasurementLog(path, header)
        if self.log.done:
            self.remarks.append(f"continued {path}: {len(self.log.done)} cases were there")

    def _cpu_profile(self, path: Path) -> HardwareProfile:
        if path.exists() and path.stat().st_size:
            found = read_measurements(path)
            if found.profile_toml is not None:
                return parse_profile(found.profile_toml, origin=path)
        from capacity_validate.cpu_profile import measure_cpu_profile

        return measure_cpu_profile(self.torch, self.facts)

    def environment(self) -> dict[str, Any]:
        """What was measured on; no host name."""
        import platform

        return {
            "device": self.facts.name,
            "kind": self.facts.kind,
            "date": datetime.now(tz=UTC).isoformat(timespec="seconds"),
            "torch": self.facts.torch_version,
            "python": platform.python_version(),
            "facts": self.facts.as_json(),
        }

    # measure

    def measure(self) -> None:
        """All stages, as far as the budget goes; Ctrl-C ends them and the report is of what there is."""
        try:
            self._stage("kernels and steps", self._kernels_and_steps)
            if self.outcome is not None and self.outcome.interrupted:
                raise KeyboardInterrupt
            if self._in_budget("techniques", wanted=self.plan.techniques):
                self._stage("techniques", self._techniques)
            if self.model is not None and self._in_budget("memory", wanted=self.plan.memory):
                self._stage("memory", self._memory)
            if self.model is not None:
                self._stage("serving", self._serving)
                self._stage("speculative decoding", self._speculation)
            self._stage("collectives", self._collectives)
        except KeyboardInterrupt:
            self.interrupted = True
            self.remarks.append("interrupted: this report is of what had been measured by then")
        except DeviceLost as lost:
            self.broken.append(str(lost))

    def _in_budget(self, name: str, *, wanted: bool) -> bool:
        """Whether a stage is wanted and the budget is not spent; says so where it is."""
        if wanted and self._time_left_s() <= 0:
            self.remarks.append(f"{name}: left out, the budget was spent")
            return False
        return wanted

    def _stage(self, name: str, run: Callable[[], None]) -> None:
        """Run a stage. What goes wrong in it is said in the report and does not cost the other stages."""
        try:
            run()
        except (DeviceLost, CapacityError):
            raise
        except Exception as error:
            if is_device_lost(error):
                raise DeviceLost(name, first_line(error)) from None
            if not is_out_of_memory(error):
                self.broken.append(f"{name} failed: {first_line(error)}")
                return
            self.remarks.append(f"{name}: left out or cut short, memory ran out ({first_line(error)})")
            self._free_memory()

    def _free_memory(self) -> None:
        import gc

        gc.collect()
        if self.on_gpu:
            self.torch.cuda.empty_cache()

    def _time_left_s(self) -> float:
        """Until the report must be begun."""
        return self.deadline - REPORT_S * self.slowdown - time.monotonic()

    def _techniques(self) -> None:
        from capacity_validate.quantizers import quantizer_findings
        from capacity_validate.techniques import technique_findings

        self._say("techniques")
        self.findings += quantizer_findings()
        self.findings += technique_findings()

    def _say(self, stage: str) -> None:
        if self.progress is not None:
            self.progress(0, 0, stage)

    def _kernels_and_steps(self) -> None:
        from capacity_validate.kernels import Bench
        from capacity_validate.timing import stopwatch_for

        cases = ordered_cases(self.plan)
        steps = self._load_model()
        bench = Bench(
            self.torch,
            self.facts.torch_name,
            self.facts.cache_bytes,
            self.generator,
            0.25 * self.facts.memory_free_bytes,
        )
        runner = CaseRunner(
            bench=bench,
            stopwatch=stopwatch_for(self.torch, self.facts.torch_name, threads=self.facts.compute_units),
            log=self.log,
            case_s=self.plan.case_s,
            own_calls=self._step_call,
        )
        share = KERNEL_SHARE if self.plan.serving else 0.9
        began, cpu = time.monotonic(), time.process_time()
        deadline = time.monotonic() + share * self._time_left_s()
        self.outcome = runner.run(
            _interleaved(cases, steps), passes=self.plan.passes, deadline=deadline, progress=self.progress
        )
        if not self.on_gpu:
            self.slowdown = max(1.0, (time.monotonic() - began) / max(1e-3, time.process_time() - cpu))
        self.remarks += clock_remarks(self.facts, *clocks_now(self.facts))
        self._extra_depth(runner)

    def _load_model(self) -> list[Case]:
        """Build the transformer, its layers cut to fit, and give its cases."""
        stage = self.plan.transformer
        if stage is None:
            return []
        from capacity_validate.model_cases import blocks_for, step_cases
        from capacity_validate.small_models import cut_layers, find_model, layers_that_fit
        from capacity_validate.transformer import Transformer, require_supported

        whole = find_model(stage.model)
        try:
            require_supported(whole)
        except UnsupportedModel as refused:
            self.remarks.append(f"no whole model was run: {refused}")
            return []
        layers = layers_that_fit(whole, MEMORY_SHARE * self.facts.memory_free_bytes)
        layers = min(layers, stage.max_layers or layers)
        if layers < 1:
            self.remarks.append(f"{whole.name} does not fit at all: no whole model was run")
            return []
        if layers < whole.num_layers:
            self.remarks.append(f"{whole.name} was cut to {layers} of {whole.num_layers} layers")
            self.extra_depth = max(1, layers // 2)
        self.model_spec = whole
        spec = cut_layers(whole, layers)
        blocks = blocks_for(stage, spec, CACHE_SHARE * self.facts.memory_free_bytes)
        self.model = Transformer(spec, device=self.facts.torch_name, num_blocks=blocks, seed=self.seed)
        self.model.fill_caches()
        return step_cases(stage, self.model.model)

    def _step_call(self, case: Case) -> Any:
        if not case.operator.startswith("model ") or self.model is None:
            return None
        from capacity_validate.kernels import Prepared
        from capacity_validate.model_cases import StepRunner

        runner = StepRunner(self.model, self.torch.Generator().manual_seed(self.seed))
        call = runner.call(case)
        return Prepared(calls=[call], check=None, tolerance=0.0, flops=0.0, bytes=0.0, capturable=False)

    def _extra_depth(self, runner: Any) -> None:
        """Where layers were cut: the same steps at half the depth, to extrapolate to all layers."""
        stage = self.plan.transformer
        if self.extra_depth is None or stage is None or self.model is None:
            return
        from capacity_validate.model_cases import step_cases
        from capacity_validate.small_models import cut_layers

        whole = self.model.layers
        few = cut_layers(self.model.model, self.extra_depth)
        points = TransformerStage(model=stage.model, prefill=stage.prefill[-1:], decode=stage.decode[-1:])
        self.model.layers = whole[: self.extra_depth]
        try:
            runner.run(step_cases(points, few), passes=1, deadline=self.deadline, progress=self.progress)
        finally:
            self.model.layers = whole

    def _memory(self) -> None:
        from capacity_validate.memory_check import (
            activation_findings,
            exact_findings,
            fused_activation_bytes,
            gpu_memory,
            peak_activation_bytes,
        )

        self._say("memory")
        self.findings += exact_findings(self.model)
        tokens = max(self.plan.transformer.prefill) if self.plan.transformer else 0
        if tokens:
            self.memory["prefill_tokens"] = float(tokens)
            peak = peak_activation_bytes(self.torch, self.model, tokens)
            self.memory["activation_peak_bytes"] = peak
            self.memory["activation_bytes_of_a_fused_engine"] = fused_activation_bytes(self.model, tokens)
            self.findings += activation_findings(self.model, tokens, peak)
        if self.on_gpu:
            self.memory |= gpu_memory(self.torch, self.facts.torch_name)

    def _serving(self) -> None:
        stage = self.plan.serving
        if stage is None or self.model_spec is None:
            return
        fits, _ = self._fits()
        calibrated = self._predictor(calibrated_profile(self.profile, fits, family=FAMILY), calibrated=True)
        steps = calibrated.step_model(self.model.model.num_layers)
        rate = _rate_per_s(stage, steps)
        expected_s = self.slowdown * stage.requests / rate
        for repeat in range(stage.repeats):
            if expected_s > self._time_left_s():
                self.remarks.append(f"the budget left time for {repeat} of {stage.repeats} serving runs")
                return
            began = time.monotonic()
            self._say(f"serving run {repeat + 1} of {stage.repeats}")
            self.served.append((rate, self._serve(stage, rate, seed=self.seed + repeat)))
            expected_s = time.monotonic() - began

    def _serve(self, stage: ServingStage, rate: float, *, seed: int) -> Any:
        from capacity_validate.serving import poisson_workload, serve

        workload = poisson_workload(
            requests=stage.requests,
            rate_per_s=rate,
            prompt_tokens=stage.prompt_tokens,
            output_tokens=stage.output_tokens,
            seed=seed,
        )
        limits = SchedulerLimits(
            max_num_seqs=stage.max_num_seqs, max_num_batched_tokens=stage.max_num_batched_tokens
        )
        return serve(self._engine_model(stage), workload, limits, clock=self._clock(), seed=seed)

    def _clock(self) -> RunClock:
        return run_clock_for(self.facts.torch_name, threads=self.facts.compute_units)

    def _engine_model(self, stage: ServingStage) -> Any:
        """The transformer, with graphs of decode batches on a GPU."""
        if not self.on_gpu:
            return self.model
        from capacity.step.setting import graph_sizes
        from capacity_validate.transformer import GraphedTransformer

        longest = stage.prompt_tokens[1] + stage.output_tokens[1]
        before = self.torch.cuda.memory_reserved(self.facts.torch_name)
        sizes = graph_sizes(stage.max_num_seqs)
        graphed = GraphedTransformer(self.model, sizes=sizes, max_context=longest)
        after = self.torch.cuda.memory_reserved(self.facts.torch_name)
        self.memory |= {"graphs": float(len(sizes)), "graph_pool_bytes": float(max(0, after - before))}
        return graphed

    def _speculation(self) -> None:
        stage = self.plan.speculation
        if stage is None or self._time_left_s() < 2:
            return
        from capacity_validate.small_models import cut_layers
        from capacity_validate.speculation import distribution_findings, predicted_speedup, run_models
        from capacity_validate.transformer import Transformer

        self._say("speculative decoding")
        shallow = cut_layers(self.model.model, max(1, self.model.model.num_layers // 6))
        draft = Transformer(
            shallow, device=self.facts.torch_name, num_blocks=self.model.num_blocks, seed=self.seed
        )
        fits, _ = self._fits()
        predictor = self._predictor(calibrated_profile(self.profile, fits, family=FAMILY), calibrated=True)
        points = list(product(stage.draft_tokens, stage.agreements))
        step_s = predictor.step_model(self.model.model.num_layers).step_seconds(
            decode_shape(1, stage.output_tokens // 2)
        )
        last_s = self.slowdown * SPECULATIVE_STEPS * stage.output_tokens * step_s
        for number, (k, agreement) in enumerate(points):
            if last_s > self._time_left_s():
                self.remarks.append(f"the budget left time for {number} of {len(points)} speculative runs")
                return
            began = time.monotonic()
            self.findings += distribution_findings(
                agreement=agreement, draft_tokens=k, samples=stage.distribution_samples, seed=self.seed
            )
            run = run_models(
                self.model,
                draft,
                agreement=agreement,
                draft_tokens=k,
                output_tokens=stage.output_tokens,
                clock=self._clock(),
            )
            predicted = predicted_speedup(
                run,
                target_s=predictor.step_model(self.model.model.num_layers).step_seconds,
                draft_s=predictor.step_model(shallow.num_layers).step_seconds,
                context=stage.output_tokens // 2,
            )
            self.findings.append(_length_finding(run))
            self.speculation.append(_speculation_row(run, predicted))
            last_s = time.monotonic() - began

    def _collectives(self) -> None:
        """Between processes of their own; left out where a GPU is alone, or the budget is spent."""
        stage = self.plan.collectives
        if stage is None:
            return
        if self._time_left_s() < COLLECTIVES_S * self.slowdown:
            self.remarks.append("collectives: left out, the budget was spent")
            return
        ranks = self.facts.devices_in_node if self.on_gpu else stage.ranks
        if ranks < 2:
            self.remarks.append("one GPU: no collectives were measured")
            return
        from capacity_validate.collectives import measure_collectives

        self._say("collectives")
        for measured in measure_collectives(
            ranks=ranks, on_cuda=self.on_gpu, message_bytes=stage.message_bytes
        ):
            if measured.case.id not in self.log.done:
                self.log.add(measured)

    # judge

    @property
    def _source(self) -> str:
        return f"capacity validate, campaign {self.campaign.name}, on {self.facts.name}"

    def _fits(self) -> tuple[list[FamilyFit], list[Refused]]:
        """Of what has been measured by now; kept until more has been."""
        key = len(self.log.done)
        if key not in self._fitted:
            cases = list(self.log.done.values())
            self._fitted[key] = fit_families(cases, self.profile, source=self._source, on_gpu=self.on_gpu)
        return self._fitted[key]

    def _step_cases(self) -> list[MeasuredCase]:
        return [
            m for m in self.log.done.values() if m.case.operator.startswith("model ") and m.status == "ok"
        ]

    def _predictor(self, profile: HardwareProfile, *, calibrated: bool) -> Predictor:
        """With the loop's host time, fitted to one half of the steps, where `calibrated`."""
        plain = Predictor(profile, on_gpu=self.on_gpu, model=self.model_spec)
        if not calibrated or self.model_spec is None or self.model is None:
            return plain
        return Predictor(profile, on_gpu=self.on_gpu, model=self.model_spec, host=self._host(profile))

    def _host(self, profile: HardwareProfile) -> HostTime:
        """Fitted to the fitting half of the steps at full depth."""
        assert self.model_spec is not None
        cases = list(self.log.done.values())
        evidence = step_evidence(cases, self.model_spec, profile, on_gpu=self.on_gpu)
        return HostTime() if evidence is None else evidence.host

    def report(self, *, tolerance_ttft: float, tolerance_tpot: float, started: float) -> ValidationReport:
        """Predictions before and after calibration, by the half of the cases that the fit did not see."""
        fits, refused = self._fits()
        before = self._predictor(self.profile, calibrated=False)
        after = self._predictor(calibrated_profile(self.profile, fits, family=FAMILY), calibrated=True)
        cases = [
            m
            for m in self.log.done.values()
            if self.model_spec is not None or not m.case.operator.startswith("model ")
        ]
        rows = case_rows(cases, before, after, roles_of(cases, fits, on_gpu=self.on_gpu))
        steps = self._step_cases()
        host = (
            after.step_model(self.model.model.num_layers).host if steps and self.model is not None else None
        )
        self.found = fit_profile(
            list(self.log.done.values()),
            self.profile,
            name=f"{self.profile.name.partition('@')[0]}@mine",
            source=self._source,
            on_gpu=self.on_gpu,
            model=self.model_spec,
        )
        spreads = sorted(row.spread for row in rows)
        if spreads and spreads[len(spreads) // 2] > NOISY:
            self.remarks.append(
                f"noisy: half of the cases scatter by more than {spreads[len(spreads) // 2]:.0%}"
            )
        return ValidationReport(
            environment=self.environment(),
            campaign=self.campaign.name,
            profile=self.profile.name,
            roofs={"hbm_bytes_per_s": self.profile.hbm_bytes_per_s, **self.profile.dense_flops_per_s},
            seconds=time.monotonic() - started,
            cases=rows,
            not_timed=not_timed(self.log.done.values()),
            left_out=self.outcome.left_out if self.outcome else (),
            classes=class_errors(rows),
            constants=tuple(_constants(fit) for fit in fits),
            refused=tuple(_refusal(entry) for entry in refused),
            bands={regime: (band.low, band.high) for regime, band in self.found.residuals.items()},
            host=None if host is None else {"step_s": host.step_s, "per_sequence_s": host.per_sequence_s},
            findings=tuple(self.findings),
            serving=tuple(self._compared(rate, run, before, after) for rate, run in self.served),
            speculation=tuple(self.speculation),
            memory=self.memory,
            extrapolation=self._extrapolation(after),
            tolerance_ttft=tolerance_ttft,
            tolerance_tpot=tolerance_tpot,
            ttft_error=median_error(rows, "model prefill"),
            tpot_error=median_error(rows, "model decode"),
            interrupted=self.interrupted,
            broken=tuple(self.broken),
            remarks=tuple(self.remarks),
        )

    def _compared(self, rate: float, run: Any, before: Predictor, after: Predictor) -> ServingComparison:
        from capacity_validate.serving import match_schedule, simulate, step_errors

        depth, window = self.model.model.num_layers, self.model.model.window_tokens
        simulated = simulate(run, after.step_model(depth), window_tokens=window).summary.to_dict()
        uncalibrated = simulate(run, before.step_model(depth), window_tokens=window).summary.to_dict()
        errors = [abs(p / m - 1) for p, m in step_errors(run, after.step_model(depth))]
        match = match_schedule(run, window_tokens=window)
        measured = run.summary
        return ServingComparison(
            requests=len(run.workload),
            rate_per_s=rate,
            steps=match.steps,
            equal_steps=match.equal_steps,
            step_error_median=statistics.median(errors),
            measured_ttft_s=measured["mean_ttft_ms"] / 1e3,
            measured_tpot_s=measured["mean_tpot_ms"] / 1e3,
            simulated_ttft_s=simulated["mean_ttft_ms"] / 1e3,
            simulated_tpot_s=simulated["mean_tpot_ms"] / 1e3,
            uncalibrated_ttft_s=uncalibrated["mean_ttft_ms"] / 1e3,
            uncalibrated_tpot_s=uncalibrated["mean_tpot_ms"] / 1e3,
            busy_fraction=run.busy_s / measured["duration"],
        )

    def _extrapolation(self, after: Predictor) -> dict[str, float] | None:
        """A decode step of the whole model: from two depths measured, against the step model."""
        from capacity_validate.small_models import extrapolated_s

        if self.extra_depth is None or self.model is None or self.model_spec is None:
            return None
        by_id = {m.case.id: m for m in self._step_cases()}
        for few in [m for m in self._step_cases() if m.case["layers"] == self.extra_depth]:
            sizes = {**dict(few.case.sizes), "layers": self.model.model.num_layers}
            more = by_id.get(Case(
                operator=few.case.operator, kernel=few.case.kernel, sizes=tuple(sorted(sizes.items()))
            ).id)  # fmt: skip
            if more is None or few.case.operator != "model decode":
                continue
            shape = decode_shape(
                few.case["batch"], few.case["context"], window_tokens=self.model_spec.window_tokens
            )
            return {
                "layers": float(self.model_spec.num_layers),
                "measured_s": extrapolated_s(
                    few=self.extra_depth, few_s=few.seconds, more=self.model.model.num_layers, more_s=more.seconds,
                    layers=self.model_spec.num_layers,
                ),
                "predicted_s": after.step_model().step_seconds(shape),
            }  # fmt: skip
        return None

    def write(self, report: ValidationReport) -> None:
        """report.json, report.html, and the calibrated profile where anything could be fitted."""
        from capacity_validate.html_report import write_html

        report.write_json(self.folder / "report.json")
        write_html(report, self.folder / "report.html")
        if self.found is not None and self.found.fits:
            write_profile(self.found.profile, self.folder)


def _interleaved(cases: list[Case], steps: list[Case]) -> list[Case]:
    """Steps of the whole model among the kernels, so that both see the same minutes; the first half comes first."""
    if not steps:
        return cases
    from capacity_validate.campaigns import spread_out

    every = max(1, len(cases) // (2 * len(steps)))
    mixed: list[Case] = []
    waiting = spread_out(steps)
    for position, case in enumerate(cases):
        if position % every == 0 and waiting:
            mixed.append(waiting.pop(0))
        mixed.append(case)
    return [*mixed, *waiting]


def _rate_per_s(stage: ServingStage, steps: StepModel) -> float:
    """`load_fraction` of what a full batch could serve, by the step model."""
    prompt = sum(stage.prompt_tokens) // 2
    output = sum(stage.output_tokens) / 2
    seats = max(1, stage.max_num_seqs // 2)
    decode_s = steps.step_seconds(decode_shape(seats, prompt + int(output / 2)))
    per_request_s = steps.step_seconds(prefill_shape(1, prompt)) + output * decode_s / seats
    return stage.load_fraction / per_request_s


def _length_finding(run: Any) -> Finding:
    """The accepted length of a real run: each draft is accepted with `agreement`, so lengths scatter as computed."""
    a, k = run.agreement, run.draft_tokens
    probabilities = [a**i * (1 - a) for i in range(k)] + [a**k]
    mean = sum((i + 1) * p for i, p in enumerate(probabilities))
    variance = sum((i + 1 - mean) ** 2 * p for i, p in enumerate(probabilities))
    return Finding(
        name=f"speculative decoding, k={k}, agreement {a:g}: accepted length",
        value=abs(run.accepted_length - run.expected_length),
        limit=5 * math.sqrt(variance / run.verifications) + 1.0 / run.verifications,
        detail=f"{run.accepted_length:.3f} measured over {run.verifications} verifications, "
        f"{run.expected_length:.3f} by (1-a^(k+1))/(1-a); limit 5 standard errors",
    )


def _speculation_row(run: Any, predicted: float) -> dict[str, Any]:
    return {
        "draft_tokens": run.draft_tokens,
        "agreement": run.agreement,
        "tokens": run.tokens,
        "equal_tokens": run.equal_tokens,
        "accepted_length": run.accepted_length,
        "expected_length": run.expected_length,
        "measured_speedup": run.speedup,
        "predicted_speedup": predicted,
    }


def _constants(fit: FamilyFit) -> dict[str, Any]:
    return {
        "family": f"{fit.target.operator} {fit.target.key}".strip(),
        "rows": fit.rows,
        "moved": {name: list(pair) for name, pair in fit.moved.items()},
        "held_out_before": fit.error_before.median,
        "held_out_after": fit.error_after.median,
        "held_out_after_p90": fit.error_after.p90,
    }


def _refusal(entry: Refused) -> dict[str, Any]:
    return {
        "family": f"{entry.target.operator} {entry.target.key}".strip(),
        "rows": entry.rows,
        "reason": entry.reason,
    }
