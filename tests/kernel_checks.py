"""Kernels prepared on a CPU, and the errors that their own checks find."""

import torch
from capacity_validate.cases import Case
from capacity_validate.kernels import KernelContext, PreparedCase, prepare


def cpu_bench() -> KernelContext:
    return KernelContext(torch, "cpu", 1, torch.Generator().manual_seed(0), 1e9)


def prepared(case: Case) -> PreparedCase:
    return prepare(case, cpu_bench())


def error_of(built: PreparedCase) -> float:
    """The relative error of a fresh result; a kernel without a check fails the test."""
    assert built.check is not None
    return built.check()
