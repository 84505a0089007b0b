"""Cards without a profile of their own: what the driver says of them comes near what their datasheets print."""

from dataclasses import replace
from pathlib import Path

import pytest
from capacity_validate.devices import DeviceFacts
from capacity_validate.profile_match import (
    is_provisional,
    match_profile,
    provisional_profile,
    provisional_remark,
)

import capacity
from capacity.base.errors import InvalidInput
from capacity.hardware import dump_profile, load_profile, parse_profile

GIB = 2**30
# name, GiB, SMs, capability, highest MHz of SM and memory, bus, TFLOP/s in 16 bit and TB/s that datasheets print
CARDS = [
    ("Tesla T4", 14.6, 40, "7.5", 1590, 5001, 256, 65.1, 0.320),
    ("NVIDIA A30", 23.5, 56, "8.0", 1440, 1215, 3072, 165.0, 0.933),
    ("NVIDIA GeForce RTX 3090", 23.7, 82, "8.6", 1695, 9751, 384, 71.2, 0.936),
    ("NVIDIA RTX 6000 Ada Generation", 47.4, 142, "8.9", 2505, 10001, 384, 364.2, 0.960),
    ("NVIDIA GH200 480GB", 94.5, 132, "9.0", 1830, 2619, 6144, 990.0, 4.0),
    ("NVIDIA H20", 95.1, 78, "9.0", 1830, 2619, 6144, 148.0, 4.0),
    ("NVIDIA H800", 79.1, 132, "9.0", 1830, 2619, 5120, 989.0, 3.35),
    ("NVIDIA GeForce RTX 4090 D", 23.6, 114, "8.9", 2520, 10501, 384, 147.0, 1.008),
    ("NVIDIA RTX A6000", 47.5, 84, "8.6", 1800, 8001, 384, 154.8, 0.768),
]


def facts_of(
    name: str, gib: float, sms: int, capability: str, sm_mhz: float, memory_mhz: float, bus: int
) -> DeviceFacts:
    return DeviceFacts(
        kind="cuda", index=0, name=name, memory_total_bytes=int(gib * GIB), memory_free_bytes=int(gib * GIB),
        compute_units=sms, cache_bytes=2**22, compute_capability=capability, sm_clock_max_hz=sm_mhz * 1e6,
        memory_clock_max_hz=memory_mhz * 1e6, memory_bus_bits=bus, power_limit_watts=300.0,
    )  # fmt: skip


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card[0])
def test_a_card_without_a_profile_gets_one_near_its_datasheet(card: tuple[object, ...]) -> None:
    *known, tflops, tbytes = card
    facts = facts_of(*known)  # type: ignore[arg-type]
    profile = provisional_profile(facts)
    assert "provisional" in provisional_remark(profile)
    assert is_provisional(profile)
    assert match_profile(facts)[0].compute_capability in (
        None,
        profile.compute_capability,
    )  # where one is bundled
    half = profile.dense_flops_per_s.get("bf16") or profile.dense_flops_per_s["fp16"]
    assert half / 1e12 == pytest.approx(tflops, rel=0.03)
    assert profile.hbm_bytes_per_s / 1e12 == pytest.approx(tbytes, rel=0.03)
    assert ("bf16" in profile.dense_flops_per_s) == (known[3] != "7.5")
    assert profile.provenance["dense_flops_per_s.fp32"].basis == "assumed"
    assert parse_profile(dump_profile(profile)) == profile


def test_what_is_in_the_bundled_profiles_would_come_out_alike() -> None:
    """Cards that are known: made again from what their driver says, roofs agree with the datasheets' to 10 %.

    NVML's highest clock is a little above the boost clock that datasheets count with.
    """
    known = [
        ("l4", facts_of("NVIDIA L4", 22.5, 58, "8.9", 2040, 6251, 192)),
        ("a100-sxm-80gb", facts_of("NVIDIA A100-SXM4-80GB", 79.3, 108, "8.0", 1410, 1593, 5120)),
        ("h100-sxm-80gb", facts_of("NVIDIA H100 80GB HBM3", 79.6, 132, "9.0", 1980, 2619, 5120)),
        ("rtx-5090-32gb", facts_of("NVIDIA GeForce RTX 5090", 31.8, 170, "12.0", 2407, 14001, 512)),
        ("rtx-4090-24gb", facts_of("NVIDIA GeForce RTX 4090", 23.6, 128, "8.9", 2520, 10501, 384)),
        ("b200", facts_of("NVIDIA B200", 178.4, 148, "10.0", 1965, 3996, 8192)),
    ]
    for name, facts in known:
        profile, made = load_profile(name), provisional_profile(facts)
        for dtype in ("bf16", "fp8", "int8"):
            if dtype in profile.dense_flops_per_s and dtype in made.dense_flops_per_s:
                ratio = made.dense_flops_per_s[dtype] / profile.dense_flops_per_s[dtype]
                assert 0.9 < ratio < 1.12, (name, dtype, ratio)
        assert made.hbm_bytes_per_s == pytest.approx(profile.hbm_bytes_per_s, rel=0.10), name


def test_a_copy_overrules_a_clock_that_is_not_the_memorys() -> None:
    """HBM3e drivers print half of the rate, and unified memory has no clock at all: then the copy counts."""
    stated = facts_of("NVIDIA H800", 79.1, 132, "9.0", 1830, 2619, 5120)
    assert provisional_profile(stated, copied_bytes_per_s=3.0e12).hbm_bytes_per_s == pytest.approx(
        3.35e12, rel=0.01
    )
    halved = replace(stated, memory_clock_max_hz=1.3e9)
    assert provisional_profile(halved, copied_bytes_per_s=3.0e12).hbm_bytes_per_s == pytest.approx(
        3.26e12, rel=0.01
    )
    unified = replace(stated, name="NVIDIA GB10", compute_capability="12.1", memory_clock_max_hz=None)
    made = provisional_profile(unified, copied_bytes_per_s=2.3e11)
    assert made.provenance["hbm_bytes_per_s"].basis == "measured"
    with pytest.raises(InvalidInput, match="the driver reports too little"):
        provisional_profile(unified)
    with pytest.raises(InvalidInput, match=r"compute capability 13\.0"):
        provisional_profile(replace(stated, compute_capability="13.0"))


def test_an_estimate_can_be_asked_of_a_provisional_profile(tmp_path: Path) -> None:
    profile = provisional_profile(facts_of("NVIDIA A30", 23.5, 56, "8.0", 1440, 1215, 3072))
    path = tmp_path / f"{profile.name}.toml"
    path.write_text(dump_profile(profile))
    answer = capacity.estimate("llama-3.2-1b", gpu=str(path), input_len=100, output_len=10, batch_size=1)
    assert answer.tpot_s is not None
    assert answer.tpot_s.value > 2.4e9 / profile.hbm_bytes_per_s
