"""GPUs that nobody measured: changed facts, profiles from a datasheet, and copies of another GPU's constants."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from flag_walk import ask, options
from typer.main import get_command
from typer.testing import CliRunner

import capacity
from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import parse_toml
from capacity.cli.main import app
from capacity.hardware import bundled_directory, dump_profile, load_profile, parse_profile
from capacity.hardware.what_if import add_gpu
from capacity.report.schemas import json_schema

UNCHANGED = ("gpus", "from-launch", "from-vllm", "validate")  # list or name a GPU, or measure one
LOAD = {"input_len": 1024, "output_len": 256, "batch_size": 8, "tensor_parallel_size": 4}


def half_width(answer: capacity.Estimate) -> float:
    tpot = answer.tpot_s
    return (tpot.high - tpot.low) / 2 / tpot.value


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """H100 as a new chip with twice the bandwidth, its tables copied."""
    text = (bundled_directory() / "h100-sxm-80gb.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^name = .*$", 'name = "x1"', text)
    text = re.sub(r"(?m)^aliases = .*$", "aliases = []", text)
    text = re.sub(r'(?m)^gpu = "h100-sxm-80gb"$', 'transferred_from = "h100-sxm-80gb"', text)
    (tmp_path / "x1.toml").write_text(text.replace("value = 3.35e+12", "value = 6.7e+12"), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("named", [False, True])
def test_copied_profile_has_the_basis_and_width_of_a_transfer(copied: Path, named: bool) -> None:
    if named:  # also where the file says that the tables are its own
        file = copied / "x1.toml"
        file.write_text(file.read_text().replace("[step_time]\n", '[step_time]\ngpu = "x1"\n', 1))
    own = capacity.estimate("llama-3.1-70b", gpu="h100", **LOAD)
    copy = capacity.estimate("llama-3.1-70b", gpu="x1", profiles=copied, **LOAD)
    assert (own.basis, copy.basis) == ("calibrated", "analytic")
    assert half_width(copy) == pytest.approx(1.5 * half_width(own), rel=0.02)
    assert copy.tpot_s.value < 0.75 * own.tpot_s.value


def test_profile_with_tables_of_its_own_keeps_its_basis() -> None:
    for gpu in ("h200", "b200", "gb200"):  # each also transfers from another
        assert capacity.estimate("llama-3.1-70b", gpu=gpu, **LOAD).basis == "calibrated"


def test_changed_gpu_is_another_gpu_by_assumption() -> None:
    own = capacity.estimate("llama-3.1-70b", gpu="h100", **LOAD)
    faster = capacity.estimate("llama-3.1-70b", gpu="h100+hbm=x2", **LOAD)
    assert faster.basis == "assumed"
    assert faster.gpu.name == "h100-sxm-80gb+hbm=x2"
    assert 0.5 * own.tpot_s.value < faster.tpot_s.value < 0.75 * own.tpot_s.value
    assert half_width(faster) > 1.5 * half_width(own)
    same = capacity.estimate("llama-3.1-70b", gpu="h100+hbm=x1", **LOAD)
    assert same.tpot_s.value == pytest.approx(own.tpot_s.value, rel=1e-9)


def test_changed_facts_are_factors_or_values() -> None:
    base = load_profile("h100")
    changed = load_profile("h100+memory=160+compute=x2+scale-up=900+fp8=4000+tdp=x2")
    assert changed.memory_datasheet_bytes == 160e9
    assert changed.memory_engine_bytes == pytest.approx(2 * base.memory_engine_bytes)
    assert changed.dense_flops_per_s["bf16"] == 2 * base.dense_flops_per_s["bf16"]
    assert changed.dense_flops_per_s["fp8"] == 4e15
    assert changed.scale_up.bytes_per_s == 9e11
    assert changed.system_watts_per_gpu == 2 * base.system_watts_per_gpu
    assert changed.provenance["tdp_watts"].basis == "assumed"
    assert changed.provenance["l2_bytes"] == base.provenance["l2_bytes"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("hbm", "write FACT=xFACTOR or FACT=VALUE"),
        ("hbm=-1", "write FACT=xFACTOR or FACT=VALUE"),
        ("hbm=0", "must be above 0"),
        ("warp=x2", "has no warp; use one of memory, hbm"),
        ("compute=3", "needs a factor, for example compute=x2"),
    ],
)
def test_change_that_means_nothing_is_refused(changes: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load_profile(f"h100+{changes}")


def test_added_gpu_is_written_with_what_is_assumed(tmp_path: Path) -> None:
    added = add_gpu(
        "x2",
        like="b200",
        memory_gb=192,
        hbm_tb_s=8,
        bf16_tflops=2500,
        tdp_watts=1200,
        profiles=tmp_path / "own",
    )
    profile = load_profile("x2", [tmp_path / "own"])
    base = load_profile("b200")
    assert (profile.hbm_bytes_per_s, profile.dense_flops_per_s["bf16"], profile.tdp_watts) == (
        8e12,
        2.5e15,
        1200,
    )
    assert profile.dense_flops_per_s["fp8"] == pytest.approx(
        2.5e15 * base.dense_flops_per_s["fp8"] / base.dense_flops_per_s["bf16"]
    )
    assert {origin.basis for origin in profile.provenance.values()} == {"assumed"}
    sources = {name: origin.source for name, origin in profile.provenance.items()}
    assert set(added.given) == {name for name, source in sources.items() if "without a source" in source}
    assert set(added.assumed) == sources.keys() - set(added.given)
    assert profile.is_guess
    assert not base.is_guess
    answer = capacity.estimate("llama-3.1-70b", gpu="x2", profiles=tmp_path / "own", **LOAD)
    assert answer.basis == "analytic"
    assert half_width(answer) > 1.5 * half_width(capacity.estimate("llama-3.1-70b", gpu="b200", **LOAD))


def test_added_gpu_names_all_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="requires --hbm-tb-s, --bf16-tflops, --like"):
        add_gpu("x2", memory_gb=192, profiles=tmp_path)
    facts = {"memory_gb": 192, "hbm_tb_s": 8, "bf16_tflops": 2500, "like": "b200", "profiles": tmp_path}
    with pytest.raises(InvalidInput, match="GPU h100-sxm-80gb already exists"):
        add_gpu("h100-sxm-80gb", **facts)
    with pytest.raises(InvalidInput, match="not a valid GPU name"):
        add_gpu("../x", **facts)
    with pytest.raises(InvalidInput, match="must be above 0"):
        add_gpu("x2", **{**facts, "hbm_tb_s": -1})


def test_profile_names_every_missing_field_at_once() -> None:
    text = 'name = "y"\n[facts]\ntdp_watts = 3\n[facts.pcie]\nkind = "pcie"\n'
    with pytest.raises(MalformedFile) as caught:
        parse_profile(text)
    said = str(caught.value)
    for name in ("vendor", "form_factor", "facts.memory_engine_bytes", "facts.l2_bytes", "facts.inter_node"):
        assert name in said
    assert "facts.pcie.bytes_per_s" in said
    assert "facts.tdp_watts: must be exactly {value, source, date, basis}" in said
    assert "\n" not in said


def test_schema_of_gpu_profiles_holds_for_the_bundled_ones() -> None:
    schema = jsonschema.Draft202012Validator(json_schema("gpu-profile"))
    for path in sorted(bundled_directory().glob("*.toml")):
        document = parse_toml(path.read_text(encoding="utf-8"), path)
        schema.validate(json.loads(json.dumps(document)))
    written = json.loads(json.dumps(parse_toml(dump_profile(load_profile("l40s")), "l40s")))
    schema.validate(written)
    del written["facts"]["l2_bytes"]
    with pytest.raises(jsonschema.ValidationError, match="l2_bytes"):
        schema.validate(written)


def test_change_is_a_flag_wherever_gpu_is_one() -> None:
    by_name = ask("quantize llama-3.1-8b --gpu h100+hbm=x2+memory=160 --method bf16")
    by_flag = ask("quantize llama-3.1-8b --gpu h100 --change hbm=x2 --change memory=160 --method bf16")
    assert by_flag == by_name
    assert by_flag.answer is not None
    for verb in (verb for verb in get_command(app).commands if verb not in UNCHANGED):  # type: ignore[attr-defined]
        flags = {name for name, _ in options(verb)}
        spelled = {flag for _, option in options(verb) for flag in option.opts}
        assert ("--gpu" in spelled) == ("change" in flags), verb
    assert "--change needs one GPU" in ask("fit llama-3.1-8b --change hbm=x2").refusal


def test_gpus_add_lists_what_is_given_and_assumed(tmp_path: Path) -> None:
    line = "gpus add x3 --memory-gb 192 --hbm-tb-s 8 --bf16-tflops 2500 --like b200 --profiles"
    printed = CliRunner().invoke(app, [*line.split(), str(tmp_path)]).stdout
    assert "given: memory_datasheet_bytes, hbm_bytes_per_s, dense_flops_per_s.bf16\n" in printed
    assert "assumed equal or proportional to those of b200-sxm-180gb: " in printed
    assert ask(f"fit llama-3.1-8b --gpu x3 --profiles {tmp_path}").answer["fits"]
    assert "has no effect without `gpus add NAME`" in ask("gpus --memory-gb 3").refusal
