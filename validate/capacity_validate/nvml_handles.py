"""Which of NVML's devices is torch's: never another card's clocks, and a MIG slice is no card."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

Ask = Callable[..., Any]  # (nvml, name, *arguments) -> answer or None


class Handle(NamedTuple):
    """What NVML is asked by: of a slice the card that it is a slice of, for only cards have clocks and power."""

    card: Any
    is_slice: bool


def find_handle(nvml: Any, ask: Ask, properties: Any, index: int) -> Handle | None:
    """By UUID, for CUDA_VISIBLE_DEVICES renumbers; by index only where nothing renumbers and the names agree."""
    for text in _uuids(properties, index):
        for spelled in (text, text.encode()):
            found = ask(nvml, "nvmlDeviceGetHandleByUUID", spelled)
            if found is not None:
                return _whole_card(nvml, ask, found, is_slice=text.startswith("MIG-"))
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None or named_as_slice(str(properties.name)):
        return None
    found = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    name = None if found is None else ask(nvml, "nvmlDeviceGetName", found)
    name = name.decode() if isinstance(name, bytes) else name
    if found is None or (name is not None and name != properties.name):
        return None
    return Handle(found, is_slice=False)


def named_as_slice(name: str) -> bool:
    """CUDA calls a slice `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    return "MIG" in name.split()


def _uuids(properties: Any, index: int) -> list[str]:
    """Names that the device may have, likeliest first."""
    uuid = getattr(properties, "uuid", None)
    texts = [] if uuid is None else [f"GPU-{uuid}", f"MIG-{uuid}"]
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith(("MIG-", "GPU-")):
        texts.insert(0, visible[index])
    if named_as_slice(str(properties.name)):
        texts.sort(key=lambda text: not text.startswith("MIG-"))
    return texts


def _whole_card(nvml: Any, ask: Ask, found: Any, *, is_slice: bool) -> Handle:
    if is_slice or ask(nvml, "nvmlDeviceIsMigDeviceHandle", found):
        parent = ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", found)
        return Handle(found if parent is None else parent, is_slice=True)
    return Handle(found, is_slice=False)
