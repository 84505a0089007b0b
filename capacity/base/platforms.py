"""Programming platform of an accelerator, which decides which engines run on it."""

from typing import Literal

Platform = Literal["cuda", "rocm", "gaudi", "tpu", "neuron", "metal", "cpu"]

TITLES: dict[Platform, str] = {
    "cuda": "NVIDIA GPUs",
    "rocm": "AMD GPUs",
    "gaudi": "Intel Gaudi",
    "tpu": "Google TPUs",
    "neuron": "AWS Trainium",
    "metal": "Apple silicon",
    "cpu": "CPUs",
}
