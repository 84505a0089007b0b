"""Facts of a device from NVML and torch. Read-only: no setting of the device is changed."""

import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capacity.base.data_files import read_data
from capacity.base.errors import InvalidInput
from capacity_validate.telemetry import Reading

WITHOUT_A_GPU = "without a GPU use --device cpu, or `capacity compare` on a server's benchmark results"
BUSY_FRACTION = 0.10  # utilisation by other processes above which timings are unreliable
CONTEXT_BYTES = 1.5 * 2**30  # upper limit of this process's own CUDA context
MIN_MEMORY_BYTES = 2**30

_THROTTLE_REASONS = read_data(Path(__file__).with_name("throttle_reasons.toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts of one device. Clocks are in Hz. A field is None if the driver does not report it; `remarks` are for the
    user."""

    kind: Literal["cpu", "cuda"]
    index: int
    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    compute_units: int  # streaming multiprocessors, or threads used
    cache_bytes: int  # the device's last-level cache: L2
    compute_capability: str | None = None
    uuid: str | None = None  # files contain only a digest of it
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_clock_max_hz: float | None = None
    memory_bus_bits: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    nvlink_links: int | None = None
    devices_in_node: int = 1
    collective_devices: tuple[int, ...] = ()  # indices of the GPUs that collectives may use
    driver_version: str | None = None
    cuda_version: str | None = None
    torch_version: str | None = None
    ecc: bool | None = None
    mig: bool | None = None
    other_processes: int | None = None
    utilization_fraction: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Return whether other processes use memory of this device, beyond the size of a CUDA context."""
        return self.memory_total_bytes - self.memory_free_bytes > CONTEXT_BYTES

    @property
    def torch_name(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    def as_json(self) -> dict[str, Any]:
        """Return all facts except those that identify this individual card."""
        return {name: value for name, value in asdict(self).items() if name != "uuid"}


def require_torch() -> Any:
    """Return the torch module. Raises InvalidInput if it is not installed."""
    try:
        import torch
    except ImportError:
        raise InvalidInput(
            "torch is not installed, so nothing can be measured: pip install 'llm-capacity[gpu]'; `capacity "
            "compare` and `capacity calibrate` work without it"
        ) from None
    return torch


def find_device(device: str = "auto", *, threads: int = 1) -> DeviceFacts:
    """Return the facts of the device: `auto` or `cuda` (the first GPU), `cuda:N`, `cuda:N,M,...`, or `cpu`.

    Collectives use the GPUs of the list; `auto` and `cuda` add every visible GPU that is not in use. `auto` never falls
    back to the CPU, whose results would not describe a GPU. Raises InvalidInput with a one-line message if a device
    does not exist.
    """
    name = device.strip().lower()
    if name == "cpu":
        return cpu_facts(require_torch(), threads=threads)
    kind, _, listed = name.partition(":")
    numbers = listed.split(",") if listed else []
    if kind not in ("auto", "cuda", "gpu") or not all(number.isdecimal() for number in numbers):
        raise InvalidInput(f"--device is {device!r}: must be auto, cuda, cuda:N, cuda:N,M,... or cpu")
    torch = require_torch()
    if not torch.cuda.is_available():
        raise InvalidInput(_why_no_gpu(torch))
    indices, count = tuple(map(int, numbers)), torch.cuda.device_count()
    if max(indices, default=0) >= count:
        raise InvalidInput(f"--device {device}: there are {count} GPUs, cuda:0 to cuda:{count - 1}")
    if len(set(indices)) < len(indices):
        raise InvalidInput(f"--device {device}: names a GPU twice")
    facts = gpu_facts(torch, indices[0] if indices else 0)
    if indices:
        return replace(facts, collective_devices=indices)
    idle, busy = _other_devices(torch, facts)
    if busy:
        names = ", ".join(f"cuda:{index}" for index in busy)
        remark = f"collectives are measured without {names}, in use or unknown to NVML; choose with --device cuda:0,1"
        facts = replace(facts, remarks=(*facts.remarks, remark))
    return replace(facts, collective_devices=(facts.index, *idle))


def _other_devices(torch: Any, facts: DeviceFacts) -> tuple[list[int], list[int]]:
    """Return the visible GPUs other than the measured one: those with idle memory, and those in use or unknown.

    Queries NVML, because torch would create a context on each GPU.
    """
    nvml = _nvml()
    idle: list[int] = []
    busy: list[int] = []
    for index in range(facts.devices_in_node):
        if index == facts.index:
            continue
        found = None if nvml is None else find_handle(nvml, torch.cuda.get_device_properties(index), index)
        memory = None if found is None else _query_nvml(nvml, "nvmlDeviceGetMemoryInfo", found.card)
        (idle if memory is not None and memory.used < CONTEXT_BYTES else busy).append(index)
    return idle, busy


def _why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"this torch ({torch.__version__}) is a CPU build, so no GPU can be used; {WITHOUT_A_GPU}"
    nvml = _nvml()
    if nvml is None:
        return f"no NVIDIA driver was found on this machine; {WITHOUT_A_GPU}"
    count = _query_nvml(nvml, "nvmlDeviceGetCount") or 0
    if count == 0:
        return f"the NVIDIA driver found no GPU; {WITHOUT_A_GPU}"
    driver = _decode_text(_query_nvml(nvml, "nvmlSystemGetDriverVersion"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES hides all {count} GPUs; unset it, or {WITHOUT_A_GPU}"
    return (
        f"driver {driver} has {count} GPUs, but torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use "
        f"them: the driver is probably older than that CUDA release; {WITHOUT_A_GPU}"
    )


def cpu_facts(torch: Any, *, threads: int = 1) -> DeviceFacts:
    """Return the facts of the CPU with `threads` threads: one by default, to reduce the effect of other processes."""
    if threads < 1:
        raise InvalidInput(f"threads must be at least 1, not {threads}")
    page = os.sysconf("SC_PAGE_SIZE")
    remarks = ["measured on a CPU, not a GPU: these results test only the harness and this machine"]
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load > 0.5 * cores:
        remarks.append(
            f"other processes use this machine (load {load:.1f} on {cores} cores), so timings are noisy"
        )
    return DeviceFacts(
        kind="cpu",
        index=0,
        name=cpu_name(),
        memory_total_bytes=os.sysconf("SC_PHYS_PAGES") * page,
        memory_free_bytes=os.sysconf("SC_AVPHYS_PAGES") * page,
        compute_units=threads,
        cache_bytes=cpu_cache_bytes(level=2),
        torch_version=str(torch.__version__),
        remarks=tuple(remarks),
    )


def _nvml() -> Any:
    """Return NVML, initialised; None if the package or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _query_nvml(nvml: Any, name: str, *arguments: Any) -> Any:
    """Return the result of an NVML query; None if the card does not support it or the package lacks the function."""
    function = getattr(nvml, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except (nvml.NVMLError, TypeError):  # TypeError: packages before 12 take bytes, newer ones text
        return None


def _decode_text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def gpu_facts(torch: Any, index: int) -> DeviceFacts:
    """Return the facts of a GPU or MIG slice from torch and NVML. Raises InvalidInput for a whole card in MIG mode."""
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    nvml = _nvml()
    handle = None if nvml is None else find_handle(nvml, properties, index)
    facts = {} if handle is None else _nvml_facts(nvml, handle.card)
    is_slice = is_slice_name(str(properties.name)) or (handle is not None and handle.is_slice)
    if facts.get("mig") and not is_slice:
        raise InvalidInput(
            f"cuda:{index} is a whole card in MIG mode: name one of its slices in CUDA_VISIBLE_DEVICES, or use a "
            f"GPU without MIG; {WITHOUT_A_GPU}"
        )
    facts["mig"] = is_slice or facts.get("mig")
    device = DeviceFacts(
        kind="cuda",
        index=index,
        name=str(properties.name),
        memory_total_bytes=int(total),
        memory_free_bytes=int(free),
        compute_units=int(properties.multi_processor_count),
        cache_bytes=int(getattr(properties, "L2_cache_size", 0) or 50 * 2**20),
        compute_capability=f"{properties.major}.{properties.minor}",
        uuid=None if getattr(properties, "uuid", None) is None else str(properties.uuid),
        devices_in_node=int(torch.cuda.device_count()),
        cuda_version=str(torch.version.cuda),
        torch_version=str(torch.__version__),
        **facts,
    )
    remarks = list(busy_remarks(device))
    if is_slice:
        remarks.append(
            "a MIG slice: clocks and power are those of the whole card, including its other slices"
        )
    if handle is None:
        why = "cannot identify this card" if nvml else "is not installed (pip install nvidia-ml-py)"
        remarks.append(f"NVML {why}, so clocks, power and other processes are unknown")
    return replace(device, remarks=tuple(remarks))


def _nvml_facts(nvml: Any, handle: Any) -> dict[str, Any]:
    def clock(name: str, kind: int) -> float | None:
        mhz = _query_nvml(nvml, name, handle, kind)
        return None if mhz is None else mhz * 1e6

    now = _read_sensors(nvml, handle)
    limit = _query_nvml(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    ecc = _query_nvml(nvml, "nvmlDeviceGetEccMode", handle)
    mig = _query_nvml(nvml, "nvmlDeviceGetMigMode", handle)
    rates = _query_nvml(nvml, "nvmlDeviceGetUtilizationRates", handle)
    processes = _query_nvml(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    nvlinks = [_query_nvml(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in range(18)]
    return {
        "sm_clock_hz": now.sm_clock_hz,
        "sm_clock_max_hz": clock("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_hz": clock("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "memory_clock_max_hz": clock("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        "power_watts": now.power_watts,
        "power_limit_watts": None if limit is None else limit / 1e3,
        "temperature_c": now.temperature_c,
        "throttle_reasons": now.reasons,
        "memory_bus_bits": _query_nvml(nvml, "nvmlDeviceGetMemoryBusWidth", handle),
        "pcie_generation": _query_nvml(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_lanes": _query_nvml(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        "nvlink_links": None if set(nvlinks) == {None} else nvlinks.count(1),
        "driver_version": _decode_text(_query_nvml(nvml, "nvmlSystemGetDriverVersion")),
        "ecc": None if ecc is None else bool(ecc[0]),
        "mig": None if mig is None else bool(mig[0]),
        "other_processes": None if processes is None else sum(p.pid != os.getpid() for p in processes),
        "utilization_fraction": None if rates is None else rates.gpu / 100,
    }


def _read_sensors(nvml: Any, handle: Any) -> Reading:
    """Return the card's current clock, power, temperature and throttle reasons."""
    mhz = _query_nvml(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
    milliwatts = _query_nvml(nvml, "nvmlDeviceGetPowerUsage", handle)
    bits = _query_nvml(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return Reading(
        at_s=time.monotonic(),
        sm_clock_hz=None if mhz is None else mhz * 1e6,
        power_watts=None if milliwatts is None else milliwatts / 1e3,
        temperature_c=_query_nvml(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        reasons=tuple(text for name, text in _THROTTLE_REASONS.items() if bits & getattr(nvml, name, 0)),
    )


def telemetry_reader(facts: DeviceFacts) -> Callable[[], Reading | None] | None:
    """Return the function that a telemetry thread calls to read this GPU; None on a CPU or without NVML."""
    nvml = _nvml() if facts.kind == "cuda" else None
    if nvml is None:
        return None
    found = find_handle(nvml, require_torch().cuda.get_device_properties(facts.index), facts.index)
    return None if found is None else partial(_read_sensors, nvml, found.card)


def require_memory(facts: DeviceFacts) -> None:
    """Raise InvalidInput if the free memory is too small for any case."""
    if facts.memory_free_bytes >= MIN_MEMORY_BYTES:
        return
    free, total = facts.memory_free_bytes / 2**30, facts.memory_total_bytes / 2**30
    way_out = (
        "wait until other processes release memory, or choose another GPU with --device cuda:N"
        if facts.kind == "cuda"
        else "free some memory first"
    )
    raise InvalidInput(
        f"{facts.torch_name} has {free:.1f} of {total:.1f} GiB of memory free, but needs "
        f"{MIN_MEMORY_BYTES / 2**30:.0f} GiB: {way_out}"
    )


def busy_remarks(facts: DeviceFacts) -> tuple[str, ...]:
    """Return remarks if other processes use the GPU or keep it busy, or if its clocks are reduced."""
    remarks = []
    used = facts.memory_total_bytes - facts.memory_free_bytes
    if facts.is_shared:  # process ids differ in a container, so compare memory
        others = f"{facts.other_processes} other processes" if facts.other_processes else "other processes"
        remarks.append(
            f"{others} use {used / 2**30:.1f} GiB of this GPU, which distorts timings; measure when it is idle, "
            "or on another GPU with --device cuda:N"
        )
    elif facts.utilization_fraction is not None and facts.utilization_fraction > BUSY_FRACTION:
        remarks.append(f"this GPU was {facts.utilization_fraction:.0%} busy before the first measurement")
    if facts.throttle_reasons:
        remarks.append(f"the clocks are reduced by: {', '.join(facts.throttle_reasons)}")
    return tuple(remarks)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    model = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def cpu_cache_bytes(*, level: int) -> int:
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((entry / "level").read_text()) == level:
                size = (entry / "size").read_text().strip()
                return int(size.rstrip("KM")) * (2**20 if size.endswith("M") else 2**10)
        except (OSError, ValueError):
            continue
    return 2**20


class Handle(NamedTuple):
    """An NVML handle. For a MIG slice, `card` is the handle of the whole card: only cards report clocks and power."""

    card: Any
    is_slice: bool


def find_handle(nvml: Any, properties: Any, index: int) -> Handle | None:
    """Find a device's NVML handle by UUID, or by index if CUDA_VISIBLE_DEVICES is unset and the names match."""
    for text in _uuids(properties, index):
        for spelled in (text, text.encode()):
            found = _query_nvml(nvml, "nvmlDeviceGetHandleByUUID", spelled)
            if found is not None:
                is_slice = text.startswith("MIG-")
                if is_slice or _query_nvml(nvml, "nvmlDeviceIsMigDeviceHandle", found):
                    parent = _query_nvml(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", found)
                    return Handle(found if parent is None else parent, is_slice=True)
                return Handle(found, is_slice=False)
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None or is_slice_name(str(properties.name)):
        return None
    found = _query_nvml(nvml, "nvmlDeviceGetHandleByIndex", index)
    name = None if found is None else _decode_text(_query_nvml(nvml, "nvmlDeviceGetName", found))
    if found is None or (name is not None and name != properties.name):
        return None
    return Handle(found, is_slice=False)


def is_slice_name(name: str) -> bool:
    """Return whether the name is that of a MIG slice, such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    return "MIG" in name.split()


def _uuids(properties: Any, index: int) -> list[str]:
    """Return UUIDs, most likely first, by which NVML may know the device."""
    uuid = getattr(properties, "uuid", None)
    texts = [] if uuid is None else [f"GPU-{uuid}", f"MIG-{uuid}"]
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith(("MIG-", "GPU-")):
        texts.insert(0, visible[index])
    if is_slice_name(str(properties.name)):
        texts.sort(key=lambda text: not text.startswith("MIG-"))
    return texts
