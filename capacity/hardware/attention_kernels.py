"""Attention kernels by name, with their published slowdown relative to the GPU's fitted kernel, by GPU architecture."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec

TABLE = Path(__file__).with_name("attention_kernels.toml")


class AttentionKernel(Spec):
    """One attention kernel; `prefill_slowdown` maps architectures to prefill time divided by the fitted kernel's.

    90 % of measured times are within a factor of `error_factor` of predicted times. With `scores_in_hbm`, a formula
    replaces the slowdown. `split_decode`: whether several thread blocks share the context of a decode.
    """

    title: str
    remark: str
    error_factor: Annotated[float, Field(ge=1)]
    source: str
    date: str
    scores_in_hbm: bool = False
    split_decode: bool = True
    prefill_slowdown: dict[str, Annotated[float, Field(ge=1)]] = Field(default_factory=dict)

    def runs_on(self, architecture: str) -> bool:
        """Return whether the kernel's speed on this architecture is known (published, or from a formula)."""
        return self.scores_in_hbm or architecture in self.prefill_slowdown


@lru_cache(maxsize=1)
def attention_kernels() -> dict[str, AttentionKernel]:
    """Return all kernels by name. Raises MalformedFile."""
    return read_rows(TABLE, AttentionKernel, named=False)


def find_attention_kernel(name: str, architecture: str) -> AttentionKernel | None:
    """Return the kernel `name` for GPUs of this architecture; None for `auto`, the fitted kernel.

    Raises InvalidInput if no speed of the kernel is published for the architecture.
    """
    if name == "auto":
        return None
    kernel = attention_kernels()[name]
    if kernel.runs_on(architecture):
        return kernel
    able = [other for other, found in attention_kernels().items() if found.runs_on(architecture)]
    raise InvalidInput(
        f"--attn-implementation {name}: no speed of {kernel.title} is published for {architecture} GPUs "
        f"(only for {', '.join(kernel.prefill_slowdown)}); use auto or {', '.join(able)}"
    )
