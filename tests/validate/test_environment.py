"""What a file says of the machine it was measured on, and what must be the same for it to be continued."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from capacity_validate.campaigns import load_campaign
from capacity_validate.cases import MeasurementLog, read_measurements
from capacity_validate.devices import DeviceFacts
from capacity_validate.environment import harness_version, host_facts, measurement_conditions
from capacity_validate.session import environment

from capacity.base.errors import InvalidInput

UUID = "6d1f7a4e-0000-0000-0000-000000000001"
H200 = DeviceFacts(
    kind="cuda", index=0, name="NVIDIA H200", memory_total_bytes=2**37, memory_free_bytes=2**37, compute_units=132,
    cache_bytes=2**25, driver_version="580.95", sm_clock_max_hz=1.98e9, power_limit_watts=700.0, uuid=UUID,
    torch_version="2.11.0",
)  # fmt: skip
QUICK = load_campaign("quick")


def fake_torch(*, cuda: str = "13.0") -> Any:
    cudnn = SimpleNamespace(version=lambda: 91002)
    nccl = SimpleNamespace(version=lambda: (2, 27, 5))
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda),
        backends=SimpleNamespace(cudnn=cudnn),
        cuda=SimpleNamespace(nccl=nccl),
    )


def header(facts: DeviceFacts = H200, **changed: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"torch": fake_torch(), "campaign": QUICK, "seed": 0, **changed}
    conditions = measurement_conditions(options["torch"], facts, options["campaign"], seed=options["seed"])
    return {"environment": environment(facts), "profile": "h200-sxm-141gb", "conditions": conditions}


def test_the_same_machine_goes_on(tmp_path: Path) -> None:
    MeasurementLog(tmp_path / "m.jsonl", header())
    MeasurementLog(tmp_path / "m.jsonl", header(replace(H200, sm_clock_hz=1.2e9, temperature_c=70.0)))
    found = read_measurements(tmp_path / "m.jsonl").conditions
    assert found["driver"] == "580.95"
    assert found["libraries"]["NCCL"] == "2.27.5"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"facts": replace(H200, driver_version="570.10")}, "driver '580.95', now '570.10'"),
        ({"facts": replace(H200, power_limit_watts=500.0)}, "power limit, W 700.0, now 500.0"),
        (
            {"facts": replace(H200, sm_clock_max_hz=1.5e9)},
            "highest SM clock, Hz 1980000000.0, now 1500000000.0",
        ),
        ({"facts": replace(H200, uuid="another")}, "card '"),
        ({"facts": replace(H200, torch_version="2.13.0")}, "torch '2.11.0', now '2.13.0'"),
        ({"facts": replace(H200, name="NVIDIA H100")}, "device 'NVIDIA H200', now 'NVIDIA H100'"),
        ({"torch": fake_torch(cuda="12.9")}, "libraries {"),
        ({"campaign": load_campaign("standard")}, "campaign 'quick "),
        ({"seed": 7}, "seed 0, now 7"),
    ],
)
def test_another_state_of_the_machine_is_refused_and_named(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    MeasurementLog(tmp_path / "m.jsonl", header())
    with pytest.raises(InvalidInput, match="--out") as refused:
        MeasurementLog(tmp_path / "m.jsonl", header(**changed))
    assert told in str(refused.value)


def test_another_harness_or_another_setting_of_the_libraries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MeasurementLog(tmp_path / "m.jsonl", header())
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(InvalidInput, match=r"variables .*NVIDIA_TF32_OVERRIDE"):
        MeasurementLog(tmp_path / "m.jsonl", header())
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # the card is known by its UUID
    MeasurementLog(tmp_path / "m.jsonl", header())
    monkeypatch.setattr("capacity_validate.environment.harness_version", lambda: "0.1 other")
    with pytest.raises(InvalidInput, match=r"harness '.*', now '0.1 other'"):
        MeasurementLog(tmp_path / "m.jsonl", header())


def test_a_file_holds_no_identity_of_the_card_or_the_host() -> None:
    text = json.dumps(header())
    assert UUID not in text
    assert str(Path.home()) not in text
    host = host_facts(H200)
    assert host["cpu"]
    assert set(host) >= {"cores", "governor", "system", "container", "windows subsystem"}
    assert len(harness_version().split()) == 2
