"""Kernels of weight formats that no table of ours holds, as data: by numbers of rows, and how sure that is."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.spec import Spec
from capacity.hardware.coefficients import ElementwiseCoefficients, GemmCoefficients

TABLE = Path(__file__).with_name("weight_kernels.toml")


class Dequantizing(ElementwiseCoefficients):
    """A pass over HBM that reads stored weights and writes them at 16 bit."""

    @property
    def as_gemm(self) -> GemmCoefficients:
        """The same in the form of a product without columns."""
        return GemmCoefficients(
            compute_fraction=1.0,
            bandwidth_fraction=self.bandwidth_fraction,
            sharpness=1.0,
            fixed_s=self.fixed_s,
            fit=self.fit,
        )


class KernelPath(Spec):
    """What multiplies steps of `from_rows` rows and more: a kernel of its own, or `product` of a copy at 16 bit."""

    from_rows: Annotated[int, Field(ge=1)] = 1
    gemm: GemmCoefficients | None = None
    roof: str | None = None
    product: str | None = None
    dequantize: Dequantizing | None = None


class WeightKernel(Spec):
    """One kernel: its paths by rows, ascending; `remark` goes with every answer that rests on it.

    Measured times lie within `error_factor` of predicted ones, up or down, in nine cases of ten.
    """

    title: str
    remark: str
    error_factor: Annotated[float, Field(gt=1)]
    experts: str
    paths: Annotated[tuple[KernelPath, ...], Field(min_length=1)]


@lru_cache(maxsize=1)
def weight_kernels() -> dict[str, WeightKernel]:
    """Every one by its name. Raises MalformedFile."""
    return read_rows(TABLE, WeightKernel, named=False)
