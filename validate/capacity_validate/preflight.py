"""Before anything is timed on a GPU: does a kernel run, a product, a Triton kernel, a graph; is bf16 the card's own.

Each question costs a moment here, and hundreds of cases of "failed" where nobody asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from capacity.base.errors import InvalidInput
from capacity_validate.capture import Captures
from capacity_validate.trouble import device_error, first_line, is_out_of_memory, require_kernels_for_device

HALF_CAPABILITY = 8  # Ampere: the first with bf16 in its tensor cores
BF16_KERNELS = ("bf16", "w4a16")  # kinds of case that compute in bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was asked and answered, for the evidence's header; what is missing, by kind of kernel; remarks."""

    answers: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def preflight(torch: Any, device: str) -> Preflight:
    """Ask a GPU for one thing of each kind. Raises InvalidInput, in one line, where nearly all cases would fail."""
    if device == "cpu":
        return Preflight()
    answers: dict[str, str] = {}
    missing: dict[str, str] = {}
    remarks: list[str] = []
    capability = torch.cuda.get_device_capability(device)
    _require(answers, "a kernel", lambda: _kernel(torch, device), "nothing runs on this GPU")
    _require(answers, "a product", lambda: _product(torch, device), "no matrix product runs on this GPU")
    if capability[0] < HALF_CAPABILITY:
        reason = f"compute capability {capability[0]}.{capability[1]} has no bf16 of its own"
        answers["bf16"] = reason
        missing |= dict.fromkeys(BF16_KERNELS, reason)
        remarks.append(f"{reason}: its cases are left out")
    _require(
        answers,
        "Triton",
        lambda: triton_answers(torch, device),
        "Triton does not work here, which most cases need: pip install triton, with a C compiler and Python's headers",
    )
    captures = Captures(torch, device)
    refusal = _failure(lambda: _graph(torch, device, captures))
    answers["a CUDA graph"] = refusal or "ok"
    if refusal is not None:
        remarks.append(
            f"CUDA graphs are refused here ({refusal}): short kernels are timed with their launch gaps"
        )
    return Preflight(answers=answers, missing=missing, remarks=tuple(remarks))


def _require(answers: dict[str, str], name: str, question: Callable[[], None], otherwise: str) -> None:
    failure = _failure(question)
    if failure is not None:
        raise InvalidInput(f"{otherwise} ({failure})")
    answers[name] = "ok"


def _failure(question: Callable[[], None]) -> str | None:
    """Why a question was not answered well. Raises InvalidInput for a torch without this GPU's code."""
    try:
        question()
    except Exception as error:
        require_kernels_for_device(error)
        text = first_line(error)
        return f"{text}; others may hold the memory" if is_out_of_memory(error) else text
    return None


def _kernel(torch: Any, device: str) -> None:
    if (text := device_error(torch, device)) is not None:
        raise RuntimeError(text)


def _product(torch: Any, device: str) -> None:
    ones = torch.ones(16, 16, device=device)
    if float((ones @ ones).sum()) != 16.0**3:
        raise RuntimeError("16 x 16 ones multiplied to something else")


def _graph(torch: Any, device: str, captures: Captures) -> None:
    counter = torch.zeros(1, device=device)
    captures.aside(lambda: counter.add_(1.0))
    graph, _ = captures.capture(lambda: counter.add_(1.0))
    graph.replay()
    torch.cuda.synchronize(device)
    if float(counter) != 2.0:
        raise RuntimeError("a replay did not run what was captured")
    graph.reset()


def triton_answers(torch: Any, device: str) -> None:
    """Compile the activation's kernel and compare: needs Triton, a C compiler and Python's headers."""
    from capacity_validate.kernels.fused import fused_gated

    both = torch.linspace(-4.0, 4.0, 64, device=device).view(2, 32)
    gate, up = both.chunk(2, dim=-1)
    off = float((fused_gated(both) - torch.nn.functional.silu(gate) * up).abs().max())
    if not off < 1e-4:
        raise RuntimeError(f"a kernel is off by {off:.1e}")
