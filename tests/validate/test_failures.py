"""What errors mean: no memory, a broken context by any name, a torch without this GPU, or a mere refusal."""

import pickle

import pytest
from capacity_validate.failures import (
    DeviceLost,
    device_error,
    error_line,
    free_memory,
    is_out_of_memory,
    require_kernels_for_device,
)
from fake_cuda import GIB, FakeCuda, FakeDevice

from capacity.base.errors import InvalidInput

STICKY = (
    "CUDA error: an illegal instruction was encountered",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: unknown error",
    "CUDA error: invalid program counter",
    "CUDA error: hardware stack error",
    "CUDA error: invalid address space",
    "CUDA error: an illegal memory access was encountered",
    "Unable to determine the device handle for GPU: GPU is lost",
)


class CompilationError(Exception):
    """As triton.compiler.errors.CompilationError: the source first, the cause in the last line."""

    __module__ = "triton.compiler.errors"


def test_triton_errors_keep_their_last_line_and_others_their_first() -> None:
    text = 'at 1:0:\ndef paged_decode(\n^\nValueError("type fp8e4nv not supported in this architecture")\n'
    assert error_line(CompilationError(text)) == (
        'CompilationError: ValueError("type fp8e4nv not supported in this architecture")'
    )
    assert error_line(RuntimeError("CUDA error: out of memory\nmore lines")) == "CUDA error: out of memory"
    assert error_line(TypeError("first\nsecond")) == "TypeError: first"
    assert error_line(KeyError()) == "KeyError"


@pytest.mark.parametrize("text", STICKY)
def test_a_broken_context_is_known_by_a_canary_whatever_it_is_called(text: str) -> None:
    fake = FakeCuda()
    assert device_error(fake.torch, "cuda:0") is None
    with pytest.raises(RuntimeError):
        fake.kernel(breaks=text)()
    assert device_error(fake.torch, "cuda:0") == text


def test_a_refusal_and_full_memory_are_no_broken_context() -> None:
    fake = FakeCuda(devices=(FakeDevice(total_bytes=GIB, used_bytes=GIB),))
    with pytest.raises(RuntimeError):
        fake.kernel(fails="no valid config")()
    assert device_error(fake.torch, "cuda:0") is None
    assert device_error(fake.torch, "cpu") is None


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    ],
)
def test_every_way_of_having_no_memory_is_one(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED"))


def test_a_torch_without_this_gpu_is_one_sentence() -> None:
    error = RuntimeError(
        "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors"
    )
    with pytest.raises(InvalidInput, match=r"^this torch build has no code for this GPU .*: install a build"):
        require_kernels_for_device(error)
    require_kernels_for_device(RuntimeError("anything else"))


def test_giving_memory_back_never_raises() -> None:
    fake = FakeCuda()
    fake.broken = STICKY[0]
    free_memory(fake.torch, "cuda:0")


def test_a_lost_device_crosses_processes_whole() -> None:
    again = pickle.loads(pickle.dumps(DeviceLost("serving", "an illegal instruction")))
    assert str(again) == "serving made the device's context unusable (an illegal instruction)"
