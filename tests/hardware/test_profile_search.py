"""Profiles are found by name, alias and folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.hardware import (
    HardwareProfile,
    bundled_directory,
    dump_profile,
    load_profile,
    profile_names,
)

BUNDLED = sorted(path.stem for path in bundled_directory().glob("*.toml"))


def all_profiles() -> list[HardwareProfile]:
    return [load_profile(name) for name in BUNDLED]


def _h100_text() -> str:
    return dump_profile(load_profile("h100-sxm-80gb"))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100-80GB", "h100-sxm-80gb"),
        ("NVIDIA_H100_80GB_HBM3", "h100-sxm-80gb"),
        ("a100", "a100-sxm-80gb"),
        ("H200", "h200-sxm-141gb"),
        ("b200", "b200-sxm-180gb"),
        ("L40S", "l40s-48gb"),
        (" rtx 4090 ", "rtx-4090-24gb"),
        ("mi300x", "mi300x-192gb"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert load_profile(alias).name == name


def test_no_two_profiles_share_an_alias() -> None:
    aliases = [alias for profile in all_profiles() for alias in (profile.name, *profile.aliases)]
    assert len(aliases) == len(set(aliases))


def test_unknown_name_suggests() -> None:
    with pytest.raises(UnknownName, match=r"no hardware profile 'h300'.*Did you mean") as caught:
        load_profile("h300")
    assert "h200" in caught.value.suggestions or "h100" in caught.value.suggestions


def test_a_users_profiles_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _h100_text()
    (tmp_path / "h100-sxm-80gb.toml").write_text(text.replace("value = 132", "value = 7", 1))
    (tmp_path / "toy-1gb.toml").write_text(
        text.replace('name = "h100-sxm-80gb"', 'name = "toy-1gb"', 1).replace('"h100", ', '"toy", ', 1)
    )
    assert load_profile("h100", [tmp_path]).sm_count == 7
    assert load_profile("TOY", [tmp_path]).name == "toy-1gb"
    assert load_profile("h100").sm_count == 132
    monkeypatch.setenv("CAPACITY_PROFILES", str(tmp_path))
    assert load_profile("h100").sm_count == 7
    assert "toy-1gb" in profile_names()
    assert load_profile(str(tmp_path / "toy-1gb.toml")).name == "toy-1gb"


def test_missing_places(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        load_profile("h100", [tmp_path / "nowhere"])
    with pytest.raises(MalformedFile, match="file does not exist"):
        load_profile(str(tmp_path / "nothing.toml"))


def test_no_alias_stands_for_another_card() -> None:
    """The card's number, with its letters, is the profile's: an A10 is no A10G."""

    makers = {
        "dgx-spark": "gb10",
        "trillium": "v6e",
        "v5litepod": "v5e",
        "trn2": "trainium2",
        "hl-325l": "gaudi3",
        "i9-13900k": "core-i9-13900k",
    }

    def card(name: str) -> str:
        words = re.sub(r"^(nvidia|amd|intel|apple|aws)-|instinct-|geforce-|tesla-|tpu-?", "", name)
        words = words.replace("rtx6000pro", "rtx-pro-6000").replace("rtx-", "").replace("rtx", "")
        words = (
            words.replace("6000ada", "6000-ada").replace("gaudi-3", "gaudi3").replace("8592+", "8592-plus")
        )
        words = makers.get(words, words)
        first, second = [*words.split("-"), ""][:2]
        several = first in ("pro", "6000", "epyc", "xeon", "core") or re.fullmatch(r"m\d", first)
        return f"{first} {second}" if several else first

    for name in profile_names():
        for alias in load_profile(name).aliases:
            assert card(alias) == card(name), alias


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("8xH100", "--gpu H100 -tp 8"),
        ("8 x h100", "--gpu h100 -tp 8"),
        ("h100:4", "--gpu h100 -tp 4"),
        ("4x4090", "--gpu 4090 -tp 4"),
        ("4090x2", "--gpu 4090 -tp 2"),
        ("NVIDIA-A100-SXM4-80GB x2", "-tp 2"),
        ("h100,a100", "`capacity plan --gpus h100,a100`"),
    ],
)
def test_several_gpus_in_the_place_of_one_are_told_how(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(says)):
        load_profile(name)


@pytest.mark.parametrize("name", ["8xH999", "h100,h999", "4", "x"])
def test_unknown_gpus_stay_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        load_profile(name)
