"""A hardware profile of this machine's CPU, measured at the time of the run; it describes no GPU."""

import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import partial
from typing import Any

from capacity.hardware import HardwareProfile, Link, Provenance
from capacity_validate.devices import DeviceFacts
from capacity_validate.profile_match import LINK_FIELDS, profile_values

_MATRICES = ((512, 1536, 512), (256, 1024, 1024), (512, 3072, 512))  # m, n, k
_WEIGHTS = ((1536, 512), (3072, 512), (2048, 2048))
_COPY_VALUES = (2**20, 2**22)
_REPETITIONS = 7
_HEADROOM = 1.1  # the best of a few calls on a shared machine is below the roof


def measure_cpu_profile(torch: Any, facts: DeviceFacts) -> HardwareProfile:
    """Measure compute roofs by dtype with matrix multiplications, and bandwidth with copies and matrix-vector
    products.

    Each roof is the best of a few calls, plus 10 %. Bandwidth is that of the memory level that holds a small model's
    working set: the last-level cache if it is large. Link values are assumptions for two processes of this machine.
    """
    rates = {
        name: _best_rate(torch, _product_calls(torch, getattr(torch, kind))) for name, kind in _DTYPES.items()
    }
    bandwidth = _best_rate(torch, _bandwidth_calls(torch))
    today = date.today().isoformat()
    measured = Provenance(
        source=f"best of {_REPETITIONS} calls, {facts.compute_units} thread(s), on {facts.name}, plus 10 %",
        date=today,
        basis="measured",
    )
    read = Provenance(source=f"operating system, on {facts.name}", date=today, basis="measured")
    assumed = Provenance(source="not used on a CPU; an arbitrary value", date=today, basis="assumed")
    link = Link(kind="pcie", bytes_per_s=bandwidth / 4, latency_s=20e-6, domain_gpus=1)
    watts = {"tdp_watts": 1.0, "system_watts_per_gpu": 1.0}
    values = profile_values(facts, hbm_bytes_per_s=bandwidth, gpus_per_node=1, **watts)
    provenance = dict.fromkeys(
        ("hbm_bytes_per_s", *(f"dense_flops_per_s.{name}" for name in rates)), measured
    )
    provenance |= dict.fromkeys(
        (n for n in values if n.startswith("memory") or n in ("l2_bytes", "sm_count")), read
    )
    provenance |= dict.fromkeys(("tdp_watts", "system_watts_per_gpu", "gpus_per_node", *LINK_FIELDS), assumed)
    return HardwareProfile(
        name="cpu",
        vendor="other",
        platform="cpu",
        architecture="cpu",
        form_factor="CPU",
        notes=f"Not a GPU. {facts.name}, {facts.compute_units} thread(s), measured by the validation harness.",
        dense_flops_per_s=rates,
        scale_up=link,
        pcie=link,
        inter_node=link,
        provenance=provenance,
        **values,
    )


_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def _best_rate(torch: Any, work: Iterable[tuple[float, Callable[[], object]]]) -> float:
    """Return the highest rate of all calls, plus headroom; `work` has (FLOP or bytes, call) pairs."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = 0.0
    for amount, call in work:
        call()
        best = max(best, amount / min(timeit.repeat(call, timer=clock, number=1, repeat=_REPETITIONS)))
    return _HEADROOM * best


def _product_calls(torch: Any, dtype: Any) -> Iterator[tuple[float, Callable[[], object]]]:
    for m, n, k in _MATRICES if dtype is torch.float32 else _MATRICES[:1]:
        a, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        yield 2.0 * m * n * k, partial(torch.nn.functional.linear, a, w)


def _bandwidth_calls(torch: Any) -> Iterator[tuple[float, Callable[[], object]]]:
    """Yield (bytes read and written, call) pairs for matrix-vector multiplications and copies of several sizes."""
    for n, k in _WEIGHTS:
        yield 4.0 * n * k, partial(torch.nn.functional.linear, torch.randn(1, k), torch.randn(n, k))
    for count in _COPY_VALUES:
        source = torch.randn(count)
        yield 8.0 * count, partial(torch.empty_like(source).copy_, source)
