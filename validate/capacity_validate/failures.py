"""Classification of device exceptions: out of memory, lost context, no code for this GPU, or rejected call."""

import contextlib
import gc
from typing import Any

from capacity.base.errors import InvalidInput

_NO_MEMORY = ("out of memory", "not enough memory", "allocate memory", "status_alloc_failed")
_NO_IMAGE = "no kernel image is available"


class DeviceLost(Exception):
    """The device's context is unusable, so this process can run nothing more. `what` names what failed."""

    def __init__(self, what: str, text: str) -> None:
        self.what, self.text = what, text
        super().__init__(f"{what} made the device's context unusable ({text})")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.text)


def error_line(error: BaseException) -> str:
    """Return an error's message in one line: its first line, or for Triton's compiler the last, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    if type(error).__module__.partition(".")[0] == "triton":
        return f"{name}: {lines[-1]}"
    return lines[0] if isinstance(error, RuntimeError) else f"{name}: {lines[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or the host."""
    return isinstance(error, MemoryError) or any(part in str(error).lower() for part in _NO_MEMORY)


def device_error(torch: Any, device: str) -> str | None:
    """Return the error of a minimal operation on a GPU; None if it succeeds or runs out of memory, and for a CPU.

    After a sticky error every CUDA call fails, with various error names, so a test is more reliable than a name list.
    """
    if device == "cpu":
        return None
    try:
        canary = torch.zeros(1, device=device).add_(1.0)
        torch.cuda.synchronize(device)
        value = float(canary)
    except RuntimeError as error:
        return None if is_out_of_memory(error) else error_line(error)
    return None if value == 1.0 else f"1 was computed as {value}"


def require_kernels_for_device(error: BaseException) -> None:
    """Raise InvalidInput if the error shows that torch has no code for this GPU, because no kernel can run."""
    if _NO_IMAGE in str(error).lower():
        raise InvalidInput(
            f"this torch build has no code for this GPU ({error_line(error)}): install a build for its compute "
            "capability"
        ) from None


def free_memory(torch: Any, device: str) -> None:
    """Release unreferenced memory. Never raises, because it runs after a failure."""
    gc.collect()
    if device != "cpu":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
