"""Programming platforms of accelerators, which determine the engines that run on them."""

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
