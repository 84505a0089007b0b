"""GEMM kernels measured only by third parties: constants by number of rows (tokens), and an error factor."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.spec import Spec
from capacity.hardware.coefficients import ElementwiseCoefficients, GemmCoefficients

TABLE = Path(__file__).with_name("weight_kernels.toml")


class DequantizationPass(ElementwiseCoefficients):
    """A pass over HBM that reads quantized weights and writes them in 16 bit."""

    @property
    def as_gemm(self) -> GemmCoefficients:
        """Return the constants of a GEMM that takes as long as this pass."""
        return GemmCoefficients(
            compute_fraction=1.0,
            bandwidth_fraction=self.bandwidth_fraction,
            sharpness=1.0,
            fixed_s=self.fixed_s,
            fit=self.fit,
        )


class KernelPath(Spec):
    """Constants of a kernel for steps of at least `from_rows` rows (tokens): `gemm`, or those of the kernel named
    `product`, which multiplies weights that the pass `dequantize` has converted to 16 bit."""

    from_rows: Annotated[int, Field(ge=1)] = 1
    gemm: GemmCoefficients | None = None
    roof: str | None = None
    product: str | None = None
    dequantize: DequantizationPass | None = None


class WeightKernel(Spec):
    """One GEMM kernel: its constants by number of rows (`paths`, ascending), and the note for answers that use it.

    90 % of measured times are within a factor of `error_factor` of predicted times.
    """

    title: str
    remark: str
    error_factor: Annotated[float, Field(gt=1)]
    experts: str
    paths: Annotated[tuple[KernelPath, ...], Field(min_length=1)]


@lru_cache(maxsize=1)
def weight_kernels() -> dict[str, WeightKernel]:
    """Return all kernels by name. Raises MalformedFile."""
    return read_rows(TABLE, WeightKernel, named=False)
