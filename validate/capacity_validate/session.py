"""Device, campaign, measurement file and budget of one validation run, which stages read and never change, and the
results, to which each stage adds.

Before any timing on a GPU, a preflight checks whether a kernel, a matrix multiplication, a Triton kernel and a CUDA
graph run, and which formats the card supports. It takes a moment and avoids hundreds of failed cases.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile, dump_profile, parse_profile
from capacity.model import ModelSpec
from capacity_validate.campaigns import Campaign, DevicePlan, use_fp16
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import FORMATS, Finding, MeasurementLog, read_measurements
from capacity_validate.devices import DeviceFacts
from capacity_validate.environment import host_facts, measurement_conditions
from capacity_validate.failures import (
    device_error,
    error_line,
    free_memory,
    is_out_of_memory,
    require_kernels_for_device,
)
from capacity_validate.kernels import TRITON
from capacity_validate.profile_match import is_provisional, match_profile, provisional_remark
from capacity_validate.runner import Progress, RunOutcome
from capacity_validate.serving_loop import EngineRun
from capacity_validate.small_models import change_dtype, find_model
from capacity_validate.speculative_decoding import SpeculativeRun
from capacity_validate.timing import RunClock, make_run_clock, make_stopwatch

if TYPE_CHECKING:
    from capacity_validate.transformer import Transformer

MEASUREMENTS = "measurements.jsonl"
COPIED_BYTES = 2**29  # size of the timed copy, many times the L2 cache
REPORT_S = 2.0  # CPU time to fit, draw and write the report


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeModel:
    """The campaign's model and, if it could be built, the transformer that runs it, with the layers that fit."""

    spec: ModelSpec  # with all layers
    transformer: Transformer | None = None
    half_depth: int | None = None  # if layers were cut, the second depth for extrapolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The state of a validation run that every stage receives. `deadline` is a value of `time.monotonic`."""

    torch: Any
    facts: DeviceFacts
    campaign: Campaign
    profile: HardwareProfile
    log: MeasurementLog
    deadline: float
    seed: int
    progress: Progress | None
    whole: WholeModel | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # missing formats or TRITON, with the reason
    slowdown: float = 1.0  # wall time / CPU time, above 1 if other processes use the machine

    @property
    def plan(self) -> DevicePlan:
        plan = self.campaign.plan(self.facts.kind)
        return use_fp16(plan) if "bf16" in self.missing else plan

    def find_model(self, name: str) -> ModelSpec:
        """Return a model by name; a bf16 model is converted to fp16 if the device lacks bf16."""
        spec = find_model(name)
        return change_dtype(spec, "fp16") if spec.dtype == "bf16" and "bf16" in self.missing else spec

    @property
    def on_gpu(self) -> bool:
        return self.facts.kind == "cuda"

    @property
    def transformer(self) -> Transformer | None:
        return None if self.whole is None else self.whole.transformer

    @property
    def source(self) -> str:
        return f"capacity validate, campaign {self.campaign.name}, on {self.facts.name}"

    def with_model(self, whole: WholeModel | None, slowdown: float | None) -> Session:
        """Return the session with the model and slowdown that a stage returned; None keeps the old value."""
        return replace(self, whole=whole or self.whole, slowdown=slowdown or self.slowdown)

    def time_left_s(self) -> float:
        """Return the seconds left for measurements, before the report must be written."""
        return self.deadline - REPORT_S * self.slowdown - time.monotonic()

    def with_time_fraction(self, fraction: float) -> Session:
        """Return the session for one stage, which may use this fraction of the time that is left."""
        spare_s = (1 - fraction) * max(0.0, self.time_left_s())
        return replace(self, deadline=self.deadline - spare_s)

    def announce(self, stage: str) -> None:
        if self.progress is not None:
            self.progress(0, 0, stage)

    def generator(self) -> Any:
        return self.torch.Generator(device=self.facts.torch_name).manual_seed(self.seed)

    def clock(self) -> RunClock:
        """Return the clock of whole-model runs: wall time, or on a one-thread CPU the thread's CPU time."""
        return make_run_clock(self.facts.torch_name, threads=self.facts.compute_units)

    def free_bytes(self) -> float:
        if self.on_gpu:
            return float(self.torch.cuda.mem_get_info(self.facts.torch_name)[0])
        return float(self.facts.memory_free_bytes)

    def free_memory(self) -> None:
        free_memory(self.torch, self.facts.torch_name)


def open_session(
    *,
    torch: Any,
    facts: DeviceFacts,
    campaign: Campaign,
    folder: Path,
    gpu: str | None,
    profiles: tuple[str, ...],
    deadline: float,
    seed: int,
    progress: Progress | None,
) -> tuple[Session, tuple[str, ...]]:
    """Return the session and remarks for the report. If a measurement file is continued, its stored profile is used.

    Raises UnknownName or InvalidInput if no profile matches, or if the file belongs to another device.
    """
    path = folder / MEASUREMENTS
    profile, remarks = _profile(torch, facts, path, gpu=gpu, profiles=profiles)
    flight = preflight(torch, facts.torch_name)
    header = _header(facts, campaign, profile) | {
        "preflight": dict(flight.answers),
        "conditions": measurement_conditions(torch, facts, campaign, seed=seed),
    }
    log = MeasurementLog(path, header)
    if log.done:
        remarks += (f"continued {path}, which contained {len(log.done)} cases",)
    session = Session(
        torch=torch,
        facts=facts,
        campaign=campaign,
        profile=profile,
        log=log,
        deadline=deadline,
        seed=seed,
        progress=progress,
        missing=flight.missing,
    )
    return session, (*facts.remarks, *flight.remarks, *remarks)


def _profile(
    torch: Any, facts: DeviceFacts, path: Path, *, gpu: str | None, profiles: tuple[str, ...]
) -> tuple[HardwareProfile, tuple[str, ...]]:
    """Return the device's profile (read from the file that is continued, matched by GPU name, or measured on a CPU),
    and remarks."""
    begun = None
    if path.exists() and path.stat().st_size and (text := read_measurements(path).profile_toml) is not None:
        begun = parse_profile(text, origin=path)
    if facts.kind == "cuda":
        torch.cuda.set_device(facts.torch_name)
        if begun is not None and gpu is None:
            return begun, (provisional_remark(begun),)
        return match_profile(
            facts,
            gpu=gpu,
            directories=profiles,
            copied_bytes_per_s=lambda: copy_rate(torch, facts.torch_name, facts.memory_free_bytes),
        )
    torch.set_num_threads(facts.compute_units)
    if begun is not None:
        return begun, ()
    from capacity_validate.profile_match import measure_cpu_profile

    return measure_cpu_profile(torch, facts), ()


def copy_rate(torch: Any, device: str, free_bytes: float) -> float:
    """Return the highest rate of a few large copies on a GPU, in bytes/s read plus bytes/s written."""
    count = int(min(COPIED_BYTES, free_bytes / 8)) // 4
    source = torch.empty(count, device=device, dtype=torch.float32).normal_()
    target = torch.empty_like(source)
    samples = make_stopwatch(torch, device).sample(
        [lambda: target.copy_(source)], budget_s=0.2, at_least=5, at_most=50, capturable=False
    )
    return 8.0 * count / min(samples.seconds)


def _header(facts: DeviceFacts, campaign: Campaign, profile: HardwareProfile) -> dict[str, Any]:
    header: dict[str, Any] = {"environment": environment(facts), "profile": profile.name}
    if facts.kind == "cpu" or is_provisional(profile):
        header["profile_toml"] = dump_profile(profile)
    transformer = campaign.plan(facts.kind).transformer
    unseen = campaign.plan(facts.kind).unseen
    header |= {} if transformer is None else {"model": transformer.model}
    return header if unseen is None else {**header, "unseen": unseen.model}


def environment(facts: DeviceFacts) -> dict[str, Any]:
    """Return facts of the measured device, its software and its host as JSON values, without the host name."""
    return {
        "device": facts.name,
        "kind": facts.kind,
        "date": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "torch": facts.torch_version,
        "python": platform.python_version(),
        "facts": facts.as_json(),
        "host": host_facts(facts),
    }


FIRST_CAPABILITY = {
    name: each["first_capability"] for name, each in FORMATS.items() if "first_capability" in each
}
NO_TRITON = "Triton does not work here: pip install triton, with a C compiler and Python's headers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Results of the preflight: `answers` for the file's header, `missing` kernels with the reasons, and remarks."""

    answers: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def preflight(torch: Any, device: str) -> Preflight:
    """Test one operation of each kind on a GPU. Raises InvalidInput in one line if most cases would fail."""
    if device == "cpu":
        return Preflight()
    answers: dict[str, str] = {}
    missing: dict[str, str] = {}
    remarks: list[str] = []
    major, minor = torch.cuda.get_device_capability(device)
    for kernel, (first, name) in FIRST_CAPABILITY.items():
        if (major, minor) < first:
            missing[kernel] = answers[name] = f"compute capability {major}.{minor} has no native {name}"
    for name, reason in answers.items():
        remarks.append(
            f"{reason}, so {'fp16 replaces it' if name == 'bf16' else f'{name} cases are skipped'}"
        )
    for name, question, otherwise in (
        ("a kernel", _test_kernel, "the test kernel failed on this GPU"),
        ("a product", _test_product, "the test matrix multiplication failed on this GPU"),
    ):
        if (failure := _failure(partial(question, torch, device))) is not None:
            raise InvalidInput(f"{otherwise} ({failure})")
        answers[name] = "ok"
    answers["Triton"] = "ok"
    if (failure := _failure(partial(check_triton, torch, device))) is not None:
        answers["Triton"] = missing[TRITON] = f"{NO_TRITON} ({failure})"
        remarks.append(
            f"{missing[TRITON]}; paged decode, fused kernels, experts and whole models are skipped"
        )
    captures = GraphCapturer(torch, device)
    refusal = _failure(partial(_test_graph, torch, device, captures))
    answers["a CUDA graph"] = refusal or "ok"
    if refusal is not None:
        remarks.append(
            f"CUDA graphs are not available here ({refusal}), so times of short kernels include launch gaps"
        )
    return Preflight(answers=answers, missing=missing, remarks=tuple(remarks))


def _failure(question: Callable[[], None]) -> str | None:
    """Return the reason if a test fails, or None. Raises InvalidInput if torch was built without code for this GPU."""
    try:
        question()
    except Exception as error:
        require_kernels_for_device(error)
        text = error_line(error)
        return f"{text}; other processes may use the memory" if is_out_of_memory(error) else text
    return None


def _test_kernel(torch: Any, device: str) -> None:
    if (text := device_error(torch, device)) is not None:
        raise RuntimeError(text)


def _test_product(torch: Any, device: str) -> None:
    ones = torch.ones(16, 16, device=device)
    if float((ones @ ones).sum()) != 16.0**3:
        raise RuntimeError("a matrix multiplication of 16 x 16 ones gives a wrong result")


def _test_graph(torch: Any, device: str, captures: GraphCapturer) -> None:
    counter = torch.zeros(1, device=device)
    captures.run_on_side_stream(lambda: counter.add_(1.0))
    graph, _ = captures.capture(lambda: counter.add_(1.0))
    graph.replay()
    torch.cuda.synchronize(device)
    if float(counter) != 2.0:
        raise RuntimeError("a graph replay did not run the captured kernels")
    graph.reset()


def check_triton(torch: Any, device: str) -> None:
    """Compile the activation kernel and check its result. Needs Triton, a C compiler and Python's header files."""
    from capacity_validate.kernels.fused import fused_gated

    both = torch.linspace(-4.0, 4.0, 64, device=device).view(2, 32)
    gate, up = both.chunk(2, dim=-1)
    off = float((fused_gated(both) - torch.nn.functional.silu(gate) * up).abs().max())
    if not off < 1e-4:
        raise RuntimeError(f"a Triton kernel has an error of {off:.1e}, above the limit of 1e-4")


class LoadedRun(NamedTuple):
    """A serving run and its request rate."""

    rate_per_s: float
    run: EngineRun


@dataclass(slots=True, kw_only=True)
class StageResults:
    """The results of all stages so far. Each stage adds to them, so that a run keeps its results if a stage fails."""

    whole: WholeModel | None = None
    outcome: RunOutcome | None = None
    slowdown: float | None = None
    throttled_fraction: float = 0.0  # of the readings during the cases, due to heat or a power brake
    findings: list[Finding] = field(default_factory=list)
    runs: list[LoadedRun] = field(default_factory=list)
    speculation: list[SpeculativeRun] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # failed stages, with the reason
