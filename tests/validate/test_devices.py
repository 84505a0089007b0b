"""Device facts: a fake NVML and a fake torch stand for cards that are not here. Nothing may ever change a setting."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import capacity_validate.devices as devices
import pytest
from capacity_validate.devices import DeviceFacts, busy_remarks, find_device, require_memory, telemetry_reader
from capacity_validate.profile_match import match_profile
from fake_cuda import FakeCuda, FakeDevice
from fake_nvml import FakeNvml

from capacity.base.errors import InvalidInput
from capacity.hardware import load_profile, profile_names

GIB = 2**30


def fake_torch(
    name: str = "NVIDIA H200",
    *,
    memory_gib: float = 139.8,
    free_gib: float = 139.0,
    sms: int = 132,
    uuid: str | None = None,
) -> Any:
    total, free = int(memory_gib * GIB), int(free_gib * GIB)
    return FakeCuda(
        devices=(FakeDevice(name=name, sms=sms, total_bytes=total, used_bytes=total - free, uuid=uuid),)
    ).torch


def place(monkeypatch: pytest.MonkeyPatch, *, torch: Any, nvml: Any) -> None:
    monkeypatch.setattr(devices, "require_torch", lambda: torch)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_facts_of_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, torch=fake_torch(), nvml=FakeNvml())
    facts = find_device("cuda:0")
    assert (facts.name, facts.compute_capability, facts.driver_version) == ("NVIDIA H200", "9.0", "580.95")
    assert (facts.sm_clock_hz, facts.sm_clock_max_hz, facts.nvlink_links) == (1.5e9, 1.98e9, 18)
    assert facts.ecc is True
    assert facts.remarks == ()
    profile, remarks = match_profile(facts)
    assert (profile.name, remarks) == ("h200-sxm-141gb", ())


@pytest.mark.parametrize(
    "lacking", [(), ("nvmlDeviceGetMigMode", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUtilizationRates")]
)
def test_an_old_pynvml_says_what_it_can(monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]) -> None:
    """Its errors come from another module, it takes bytes, and some functions are not there yet."""
    uuid = "6d1f7a4e-0000-0000-0000-000000000001"
    torch = fake_torch(uuid=uuid)
    place(monkeypatch, torch=torch, nvml=FakeNvml(old=True, lacking=lacking, handles={f"GPU-{uuid}": "card"}))
    facts = find_device("cuda:0")
    assert (facts.sm_clock_hz, facts.driver_version) == (1.5e9, "580.95")
    assert facts.mig is (False if not lacking else None)
    bare = FakeNvml(old=True, lacking=("nvmlDeviceGetClockInfo",))
    place(monkeypatch, torch=torch, nvml=bare)
    assert find_device("cuda:0").sm_clock_hz is None


def test_the_second_of_two_cards_is_found_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES renumbers torch's devices and not the driver's."""
    cards = (
        FakeDevice(),
        FakeDevice(name="NVIDIA L4", major=8, minor=9, sms=58, total_bytes=22 * GIB, uuid="second"),
    )
    place(
        monkeypatch, torch=FakeCuda(devices=cards).torch, nvml=FakeNvml(handles={"GPU-second": "its handle"})
    )
    asked: list[str] = []
    monkeypatch.setattr(devices, "_nvml_facts", lambda _, handle: asked.append(handle) or {})
    facts = find_device("cuda:1")
    assert (facts.name, facts.compute_capability, facts.compute_units) == ("NVIDIA L4", "8.9", 58)
    assert (facts.torch_name, facts.devices_in_node, asked) == ("cuda:1", 2, ["its handle"])


@pytest.mark.parametrize(
    ("device", "index", "chosen", "remark"),
    [
        ("cuda:3", 3, (3,), ""),
        ("cuda:2,0", 2, (2, 0), ""),
        ("auto", 0, (0, 2), "without cuda:1, cuda:3, in use or unknown to NVML"),
    ],
)
def test_collectives_get_the_chosen_gpus_and_none_in_use(
    monkeypatch: pytest.MonkeyPatch, device: str, index: int, chosen: tuple[int, ...], remark: str
) -> None:
    """The second card has a neighbour's 60 GiB, and the driver does not report the fourth."""
    cards = tuple(FakeDevice(uuid=f"{number}") for number in range(4))
    used = {"card 0": GIB // 2, "card 1": 60 * GIB, "card 2": GIB // 2}
    nvml = FakeNvml(handles={f"GPU-{number}": f"card {number}" for number in range(4)})

    def memory(handle: str) -> Any:
        if handle not in used:
            raise nvml.NVMLError("Not Supported")
        return SimpleNamespace(used=used[handle])

    nvml.nvmlDeviceGetMemoryInfo = memory
    place(monkeypatch, torch=FakeCuda(devices=cards).torch, nvml=nvml)
    facts = find_device(device)
    assert (facts.index, facts.collective_devices) == (index, chosen)
    assert [text for text in facts.remarks if "collectives" in text] == (
        [f"collectives are measured {remark}; choose with --device cuda:0,1"] if remark else []
    )


@pytest.mark.parametrize(
    ("device", "said"),
    [("cuda:0,0", "names a GPU twice"), ("cuda:0,4", "cuda:0 to cuda:1"), ("cuda:0,x", "cuda:N,M")],
)
def test_a_wrong_list_of_devices_is_one_line(monkeypatch: pytest.MonkeyPatch, device: str, said: str) -> None:
    place(monkeypatch, torch=FakeCuda(devices=(FakeDevice(), FakeDevice())).torch, nvml=FakeNvml())
    with pytest.raises(InvalidInput, match=said):
        find_device(device)


def test_what_a_telemetry_thread_asks_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(throttled=4 | 32)
    place(monkeypatch, torch=fake_torch(), nvml=nvml)
    read = telemetry_reader(find_device("cuda:0"))
    assert read is not None
    reading = read()
    assert reading is not None
    assert (reading.sm_clock_hz, reading.power_watts, reading.temperature_c) == (1.5e9, 90.0, 35)
    assert reading.reasons == ("power cap", "heat (software)")
    place(monkeypatch, torch=fake_torch(), nvml=None)
    assert telemetry_reader(card("NVIDIA H200", 139.8)) is None


def test_mig_is_refused_and_company_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, torch=fake_torch(), nvml=FakeNvml(mig=1))
    with pytest.raises(InvalidInput, match="MIG"):
        find_device("cuda")
    place(monkeypatch, torch=fake_torch(free_gib=60), nvml=FakeNvml(others=2, throttled=4))
    remarks = find_device("cuda").remarks
    assert any("2 other processes use 79.8 GiB" in remark for remark in remarks)
    assert any("power cap" in remark for remark in remarks)


def test_too_little_free_memory_is_one_line_with_a_way_out() -> None:
    full = replace(card("NVIDIA H200", 139.8), memory_free_bytes=GIB // 2)
    with pytest.raises(InvalidInput, match=r"^cuda:0 has 0.5 of 139.8 GiB of memory free.*--device cuda:N"):
        require_memory(full)
    require_memory(card("NVIDIA H200", 139.8))


def test_an_own_context_is_nobody_else_and_a_busy_card_is_said() -> None:
    """In a container the driver's process numbers are not ours: a process with hardly any memory is us."""
    idle = card("NVIDIA H200", 139.8)
    own = replace(idle, memory_free_bytes=idle.memory_total_bytes - GIB, other_processes=1)
    assert busy_remarks(own) == ()
    (busy,) = busy_remarks(replace(own, utilization_fraction=0.8))
    assert "80% busy before the first measurement" in busy


def test_a_capped_or_different_card_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, torch=fake_torch(sms=114), nvml=FakeNvml(limit_w=350))
    _, remarks = match_profile(find_device("cuda"))
    assert any("350 W" in remark and "700 W" in remark for remark in remarks)
    assert any("114 SMs" in remark for remark in remarks)
    pcie = fake_torch("NVIDIA H100 PCIe", memory_gib=79.6, sms=114)
    place(monkeypatch, torch=pcie, nvml=FakeNvml(limit_w=350))
    _, remarks = match_profile(find_device("cuda"), gpu="h100-sxm-80gb")
    assert any("PCIE card" in remark for remark in remarks)


@pytest.mark.parametrize(
    ("name", "memory_gib", "expected"),
    [
        ("NVIDIA H200", 139.8, "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", 139.8, "h200-nvl-141gb"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 79.6, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 93.6, "h100-nvl-94gb"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 39.6, "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", 79.3, "a100-pcie-80gb"),
        ("NVIDIA B200", 178.4, "b200-sxm-180gb"),
        ("NVIDIA L4", 22.5, "l4-24gb"),
        ("NVIDIA L40S", 44.5, "l40s-48gb"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 5090", 31.8, "rtx-5090-32gb"),
    ],
)
def test_cards_find_their_profile_by_name(name: str, memory_gib: float, expected: str) -> None:
    assert expected in profile_names()
    sms = load_profile(expected).sm_count
    assert match_profile(card(name, memory_gib, sms))[0].name == expected


def card(name: str, memory_gib: float, sms: int = 100) -> DeviceFacts:
    total = int(memory_gib * GIB)
    return DeviceFacts(
        kind="cuda", index=0, name=name, memory_total_bytes=total, memory_free_bytes=total, compute_units=sms,
        cache_bytes=1,
    )  # fmt: skip


def test_a_card_that_even_the_driver_says_little_of_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"no hardware profile for 'NVIDIA X900'.*--gpu"):
        match_profile(card("NVIDIA X900", 100))
    profile, remarks = match_profile(card("NVIDIA X900", 100), gpu="h100")
    assert profile.name == "h100-sxm-80gb"
    assert remarks


def test_a_profile_of_another_kind_of_card_is_refused() -> None:
    """A 4090 "calibrated" as an H200 would be a profile of neither."""
    game = replace(card("NVIDIA GeForce RTX 4090", 23.6), compute_capability="8.9")
    with pytest.raises(InvalidInput, match=r"--gpu h200-sxm-141gb has compute capability 9.0.*has 8.9"):
        match_profile(game, gpu="h200")


SLICE = "NVIDIA H100 80GB HBM3 MIG 7g.80gb"


def test_a_slice_of_a_whole_card_is_not_taken_for_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own UUID: its card's clocks, not those of whatever card is number 0 of the host."""
    uuid = "11111111-2222-3333-4444-555555555555"
    torch = fake_torch(SLICE, memory_gib=79.0, free_gib=78.5, uuid=uuid)
    answers = {
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "card 5",
        "nvmlDeviceGetMemoryBusWidth": 5120,
        "nvmlDeviceIsMigDeviceHandle": 1,
    }
    nvml = FakeNvml(mig=1, handles={f"MIG-{uuid}": "slice"}, answers=answers)
    place(monkeypatch, torch=torch, nvml=nvml)
    facts = find_device("cuda:0")
    assert facts.mig is True
    assert any("MIG slice" in remark for remark in facts.remarks)
    assert ("nvmlDeviceGetPowerUsage", ("card 5",)) in nvml.asked
    assert "nvmlDeviceGetHandleByIndex" not in [name for name, _ in nvml.asked]
    profile, (remark,) = match_profile(facts, copied_bytes_per_s=lambda: 1.5e12)
    assert profile.name == "h100-mig-7g.80gb-85gb"
    assert "provisional" in remark
    whole, _ = match_profile(card("NVIDIA H100 80GB HBM3", 79.0))
    assert whole.name == "h100-sxm-80gb"


def test_a_slice_that_nvml_cannot_find_gets_no_other_cards_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch("NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_gib=9.8, free_gib=9.5, sms=16)
    place(monkeypatch, torch=torch, nvml=FakeNvml())
    facts = find_device("cuda:0")
    assert (facts.mig, facts.sm_clock_hz, facts.power_limit_watts) == (True, None, None)
    assert any("cannot identify this card" in remark for remark in facts.remarks)


def test_where_devices_are_renumbered_the_index_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    nvml = FakeNvml()
    place(monkeypatch, torch=fake_torch(), nvml=nvml)
    assert find_device("cuda:0").sm_clock_hz is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa")
    place(monkeypatch, torch=fake_torch(), nvml=FakeNvml(handles={"GPU-aaaa": "third"}))
    assert find_device("cuda:0").sm_clock_hz == 1.5e9
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    other = FakeNvml(answers={"nvmlDeviceGetName": b"NVIDIA A40"})
    place(monkeypatch, torch=fake_torch(), nvml=other)
    assert find_device("cuda:0").sm_clock_hz is None


def without_gpu(*, cuda: str | None) -> Any:
    none = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    return SimpleNamespace(cuda=none, __version__="2.13.0", version=SimpleNamespace(cuda=cuda, hip=None))


def test_every_way_of_having_no_gpu_is_one_line_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place(monkeypatch, torch=without_gpu(cuda=None), nvml=FakeNvml())
    with pytest.raises(InvalidInput, match=r"CPU build.*--device cpu"):
        find_device("auto")
    place(monkeypatch, torch=without_gpu(cuda="12.9"), nvml=None)
    with pytest.raises(InvalidInput, match=r"no NVIDIA driver.*--device cpu"):
        find_device("auto")
    place(monkeypatch, torch=without_gpu(cuda="12.9"), nvml=FakeNvml())
    with pytest.raises(InvalidInput, match=r"driver 580.95 has 1 GPUs.*cannot use"):
        find_device("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InvalidInput, match="CUDA_VISIBLE_DEVICES hides"):
        find_device("auto")
    place(monkeypatch, torch=fake_torch(), nvml=FakeNvml())
    with pytest.raises(InvalidInput, match="there are 1 GPUs"):
        find_device("cuda:3")
    with pytest.raises(InvalidInput, match="must be auto, cuda"):
        find_device("tpu")


def test_no_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match=r"torch is not installed.*llm-capacity\[gpu\]"):
        find_device("cpu")


def test_every_name_asked_of_nvml_is_one_that_it_has() -> None:
    nvml = pytest.importorskip("pynvml")
    source = Path(devices.__file__ or "").read_text(encoding="utf-8")
    names = {*re.findall(r"\b(nvml[A-Z]\w+|NVML_\w+)", source)} - {"nvmlInit"}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(nvml, name)] == []
    assert issubclass(nvml.NVMLError, Exception)


def test_the_harness_has_no_call_that_changes_a_card() -> None:
    """NVML functions that set, reset or lock anything do not occur in the source."""
    for path in Path(devices.__file__).parent.rglob("*.py"):
        found = re.findall(
            r"nvmlDevice(?:Set|Reset|Clear|Lock)\w*|nvidia-smi", path.read_text(encoding="utf-8")
        )
        assert not found, (path.name, found)
