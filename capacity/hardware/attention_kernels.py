"""Attention kernels by name, as data: what each is worth on which GPUs, by what others published."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec

TABLE = Path(__file__).with_name("attention_kernels.toml")


class AttentionKernel(Spec):
    """One kernel: how many times longer its prefill takes than the fitted one's, by architecture.

    Measured times lie within `error_factor` of predicted ones, up or down, in nine cases of ten. `scores_in_hbm`: no
    slowdown but a formula. `split_decode`: whether several blocks share the context of a decode.
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
        """Whether it runs there, as far as anybody published."""
        return self.scores_in_hbm or architecture in self.prefill_slowdown


@lru_cache(maxsize=1)
def attention_kernels() -> dict[str, AttentionKernel]:
    """Every one by its name. Raises MalformedFile."""
    return read_rows(TABLE, AttentionKernel, named=False)


def find_attention_kernel(name: str, architecture: str) -> AttentionKernel | None:
    """A kernel on GPUs of this architecture; None: `auto`, the one that was fitted there. Raises InvalidInput."""
    if name == "auto":
        return None
    kernel = attention_kernels()[name]
    if kernel.runs_on(architecture):
        return kernel
    able = [other for other, found in attention_kernels().items() if found.runs_on(architecture)]
    raise InvalidInput(
        f"--attn-implementation {name}: {kernel.title} has no published speed on {architecture} GPUs "
        f"({', '.join(kernel.prefill_slowdown)}); use auto or {', '.join(able)}"
    )
