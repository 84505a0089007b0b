"""A stand-in for pynvml, new and old: one H200 on NVLink in the hands of nobody else, unless told otherwise."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As nvidia-ml-py has it."""


class OldNVMLError(Exception):
    """As pynvml 11 has it: the class lives in a module within the package."""


NVMLError.__module__ = "pynvml"
OldNVMLError.__module__ = "pynvml.nvml"


class FakeNvml(ModuleType):
    """`lacking` functions are not in the package; those without an answer raise NVMLError, as "Not Supported" does.

    `answers` take the place of what it says by itself, `asked` holds what it was asked.
    `old`: pynvml 11, whose errors come from `pynvml.nvml` and which takes bytes where new packages take text.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonSwPowerCap = 4  # noqa: N815
    nvmlClocksThrottleReasonSwThermalSlowdown = 32  # noqa: N815

    def __init__(
        self,
        *,
        mig: int = 0,
        throttled: int = 0,
        limit_w: float = 700.0,
        others: int = 0,
        old: bool = False,
        lacking: tuple[str, ...] = (),
        handles: dict[str, str] | None = None,
        answers: dict[str, Any] | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.NVMLError = OldNVMLError if old else NVMLError
        self.old, self.lacking, self.handles = old, lacking, handles or {}
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.own_answers = answers or {}
        self.mig, self.throttled, self.limit_w, self.others = mig, throttled, limit_w, others
        self.sm_clock_mhz, self.temperature_c, self.milliwatts = 1500, 35, 90_000

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> str:  # noqa: N802
        if self.old and isinstance(uuid, str):
            raise TypeError("bytes or integer address expected instead of str instance")
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        if text not in self.handles:
            raise self.NVMLError("Not Found")
        return self.handles[text]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in ModuleType.__getattribute__(self, "__dict__").get(
            "lacking", ()
        ):
            raise AttributeError(name)
        return ModuleType.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith("nvmlClocks") or name in self.lacking:
            raise AttributeError(name)
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlSystemGetDriverVersion": b"580.95",
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetPowerUsage": self.milliwatts,
            "nvmlDeviceGetEnforcedPowerLimit": int(self.limit_w * 1000),
            "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetMigMode": (self.mig, self.mig),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=-1)] * self.others,
            "nvmlDeviceGetClockInfo": self.sm_clock_mhz,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": self.temperature_c,
            "nvmlDeviceGetCurrentClocksThrottleReasons": self.throttled,
            "nvmlDeviceGetNvLinkState": 1,
            **self.own_answers,
        }

        def answer(*arguments: Any) -> Any:
            self.asked.append((name, arguments))
            if name not in answers:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return answer
