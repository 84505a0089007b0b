"""Presets: exact counts, names, files and downloads. Expected numbers are others', with their source."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from slowness import cpu_limit

import capacity.model.presets as presets_module
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.model import (
    load_model,
    model_names,
)
from capacity.model.presets import version_numbers

PRESETS = Path(presets_module.__file__).parent / "presets"


# preset, total, routed experts, active (input embedding included), KV bytes per token at 16 bit of layers that
# grow without bound, of layers with a window, state bytes per sequence of linear layers.
# Source: parameter counts of the modules of transformers 5.23 on the meta device (2026-11), 32 of 33 rows, an
# independent formula the last (GLM-4.7); KV by each model's published attention shapes.
# Phi-3: all 32 layers have the window of its config.json (2047 tokens), so both columns are theirs.
COUNTS = [
    ("llama-3.1-8b", 8_030_261_248, 0, 8_030_261_248, 131_072, 0, 0),
    ("llama-3.1-70b", 70_553_706_496, 0, 70_553_706_496, 327_680, 0, 0),
    ("llama-3.1-405b", 405_853_388_800, 0, 405_853_388_800, 516_096, 0, 0),
    ("llama-3.2-1b", 1_235_814_400, 0, 1_235_814_400, 32_768, 0, 0),
    ("llama-2-7b", 6_738_415_616, 0, 6_738_415_616, 524_288, 0, 0),
    ("llama-2-70b", 68_976_648_192, 0, 68_976_648_192, 327_680, 0, 0),
    ("mistral-7b", 7_248_023_552, 0, 7_248_023_552, 131_072, 0, 0),
    ("mistral-nemo-12b", 12_247_782_400, 0, 12_247_782_400, 163_840, 0, 0),
    ("mixtral-8x7b", 46_702_792_704, 45_097_156_608, 12_879_925_248, 131_072, 0, 0),
    ("mixtral-8x22b", 140_630_071_296, 135_291_469_824, 39_161_468_928, 229_376, 0, 0),
    ("qwen2.5-7b", 7_615_616_512, 0, 7_615_616_512, 57_344, 0, 0),
    ("qwen3-8b", 8_190_735_360, 0, 8_190_735_360, 147_456, 0, 0),
    ("qwen3-14b", 14_768_307_200, 0, 14_768_307_200, 163_840, 0, 0),
    ("qwen3-32b", 32_762_123_264, 0, 32_762_123_264, 262_144, 0, 0),
    ("qwen3-30b-a3b", 30_532_122_624, 28_991_029_248, 3_353_032_704, 98_304, 0, 0),
    ("qwen3-235b-a22b", 235_093_634_560, 227_096_395_776, 22_190_763_520, 192_512, 0, 0),
    ("qwen3-next-80b-a3b", 79_674_391_296, 77_309_411_328, 3_874_929_408, 24_576, 0, 77_266_944),
    ("qwen3.5-35b-a3b", 34_660_610_688, 32_212_254_720, 3_454_988_928, 20_480, 0, 64_389_120),
    ("qwen3.5-122b-a10b", 122_111_526_912, 115_964_116_992, 9_771_288_576, 24_576, 0, 153_649_152),
    ("deepseek-v2-lite", 15_706_484_224, 14_394_851_328, 2_661_150_208, 31_104, 0, 0),
    ("deepseek-r1", 671_026_404_352, 653_908_770_816, 37_552_282_624, 70_272, 0, 0),
    ("deepseek-v3.2", 671_877_929_216, 653_908_770_816, 38_403_807_488, 70_272, 0, 0),
    ("gpt-oss-120b", 116_829_156_672, 114_701_598_720, 5_711_982_912, 36_864, 36_864, 0),
    ("gpt-oss-20b", 20_914_757_184, 19_116_933_120, 4_187_440_704, 24_576, 24_576, 0),
    ("gemma-3-27b", 27_009_346_304, 0, 27_009_346_304, 81_920, 425_984, 0),
    ("gemma-2-27b", 27_227_128_320, 0, 27_227_128_320, 188_416, 188_416, 0),
    ("llama-4-scout", 107_769_861_120, 96_636_764_160, 17_172_894_720, 49_152, 147_456, 0),
    ("llama-4-maverick", 400_711_848_960, 386_547_056_640, 17_184_691_200, 49_152, 147_456, 0),
    ("kimi-k2", 1_026_408_209_408, 1_014_686_023_680, 32_861_477_888, 70_272, 0, 0),
    ("glm-4.7", 352_797_814_784, 335_963_750_400, 33_632_251_904, 376_832, 0, 0),
    ("glm-4.6", 352_797_814_784, 335_963_750_400, 33_632_251_904, 376_832, 0, 0),
    ("deepseek-v3.1", 671_026_404_352, 653_908_770_816, 37_552_282_624, 70_272, 0, 0),
    ("glm-5.2", 743_911_199_232, 724_775_731_200, 41_784_709_632, 89_856, 0, 0),
    ("minimax-m2", 228_689_748_992, 224_680_476_672, 11_030_537_216, 253_952, 0, 0),
    ("phi-3-mini", 3_821_079_552, 0, 3_821_079_552, 393_216, 393_216, 0),
]


IDS = [row[0] for row in COUNTS]


@pytest.mark.parametrize("row", COUNTS, ids=IDS)
def test_parameter_counts_equal_the_reference_modules(row: tuple[str, int, int, int, int, int, int]) -> None:
    model = load_model(row[0])
    experts = sum(part.params for part in model.parameter_parts() if part.kind == "experts")
    assert (model.total_params, experts, model.active_params) == row[1:4]


@pytest.mark.parametrize("row", COUNTS, ids=IDS)
def test_kv_cache_equals_the_published_shapes(row: tuple[str, int, int, int, int, int, int]) -> None:
    model = load_model(row[0])
    index = sum(group.bytes_per_token for group in model.kv_cache_groups() if group.index)
    found = (
        model.kv_bytes_per_token() - index,
        model.window_kv_bytes_per_token(),
        model.state_bytes_per_sequence(),
    )
    assert found == row[4:7]


def test_the_transcribed_rows_are_those_of_the_reference_table(shared_dir: Path) -> None:
    with (shared_dir / "reference" / "models.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    total, active = "total_params_computed", "active_params_incl_input_embed"
    referred = Counter((int(r[total]), int(r[active])) for r in rows)
    assert not referred - Counter((row[1], row[3]) for row in COUNTS), "in the table, and not transcribed"


# Totals of the safetensors metadata that the models' pages on the Hugging Face hub state; they count what we
# count apart: vision tower, MTP layer with its copies of embedding and head, score correction biases, scales.
@pytest.mark.parametrize(
    ("name", "published", "moe_layers", "num_experts"),
    [
        ("glm-4.7-flash", 31_221_488_576, 47, 64),
        ("glm-4.5-air", 110_468_824_832, 46, 128),
        # less the 41,540,496 FP8 scales that the page counts
        ("deepseek-v3", 684_531_386_000 - 41_540_496, 59, 256),
    ],
)
def test_mtp_layers_make_up_the_published_totals(
    name: str, published: int, moe_layers: int, num_experts: int
) -> None:
    model = load_model(name)
    copies = 2 * model.vocab_size * model.hidden_size
    mtp_params = sum(part.params for part in model.mtp_parts())
    assert model.total_params + mtp_params + copies + moe_layers * num_experts == published


@pytest.mark.parametrize("name", model_names())
def test_every_preset_is_within_half_a_percent_of_its_published_count(name: str) -> None:
    preset = json.loads((PRESETS / f"{name}.json").read_text())
    assert preset["source"]
    assert preset["date"]
    model = load_model(name)
    assert model.total_params == pytest.approx(preset["published_params"], rel=0.005)
    assert model.name == name
    assert model.hf_id == preset["hf_id"]
    assert model.source


@pytest.mark.parametrize("name", model_names())
def test_what_is_from_memory_is_said(name: str) -> None:
    preset = json.loads((PRESETS / f"{name}.json").read_text())
    from_memory = "from memory" in preset["source"]
    assert (preset.get("basis") == "assumed") == from_memory
    assert any("are assumed and not verified (" in note for note in load_model(name).notes) == from_memory


def test_there_are_presets_enough_and_the_index_lists_them_all() -> None:
    assert len(model_names()) >= 140
    assert {path.stem for path in PRESETS.glob("*.json")} == {*model_names(), "index"}


def test_aliases_are_of_one_model_each() -> None:
    index = json.loads((PRESETS / "index.json").read_text())
    owner: dict[str, str] = {}
    for name, spellings in index.items():
        assert json.loads((PRESETS / f"{name}.json").read_text())["hf_id"] == spellings[0]
        for spelling in {s.lower() for s in (name, *spellings)} | {
            s.split("/")[-1].lower() for s in spellings
        }:
            assert owner.setdefault(spelling, name) == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        (" LLAMA_3.1_70B ", "llama-3.1-70b"),
        ("deepseek-r1", "deepseek-r1"),
        ("qwen3-235b", "qwen3-235b-a22b"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("openai/GPT-OSS-20B", "gpt-oss-20b"),
    ],
)
def test_a_model_is_found_by_its_spellings(spelling: str, name: str) -> None:
    assert load_model(spelling).name == name


def test_an_unknown_name_suggests() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'llama-3.1-70b'") as caught:
        load_model("llama-3.1-70")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name", "stored"),
    [
        ("/app/DeepSeek-R1", "deepseek-r1", "fp8-block"),
        ("/data2/deepseek-ai/DeepSeek-R1/", "deepseek-r1", "fp8-block"),
        ("~/models/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", "bf16"),
        ("./weights/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "awq-int4"),
        ("~/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/2069b3fa", "qwen3-8b", "bf16"),
        ("/hub/models--nvidia--Llama-3.3-70B-Instruct-FP8/snapshots/1", "llama-3.3-70b", "fp8"),
    ],
)
def test_a_folder_of_another_machine_is_read_by_its_name(path: str, name: str, stored: str) -> None:
    model = load_model(path)
    assert (model.name, model.checkpoint.name) == (name, stored)
    assert any(f"{path!r} is not on this machine" in note for note in model.notes)


def test_a_folder_that_is_here_is_read_itself(tmp_path: Path) -> None:
    here = tmp_path / "Qwen3-8B"
    here.mkdir()
    with pytest.raises(MalformedFile):
        load_model(here)


@pytest.mark.parametrize("name", ["", "   ", "a/b/c", "/nowhere/config", "org/", "../x", "/", "~", "//"])
def test_what_is_neither_name_nor_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        load_model(name)


def test_a_hub_name_needs_download() -> None:
    with pytest.raises(InvalidInput, match="--download"):
        load_model("some-org/some-model-7b")


def test_download_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidInput, match="pip install"):
        load_model("some-org/some-model-7b", download=True)


def test_a_failing_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_args: object, **_kwargs: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    with pytest.raises(InvalidInput, match="no route") as caught:
        load_model("some-org/some-model-7b", download=True)
    assert "\n" not in str(caught.value)


def test_a_download_reads_the_config_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    config = json.loads((PRESETS / "qwen3-8b.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = []

    def fetch(repo: str, file: str) -> str:
        asked.append((repo, file))
        if file != "config.json":
            raise hub.errors.EntryNotFoundError("none")
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    model = load_model("some-org/Some-8B", download=True)
    assert (model.name, model.hf_id, model.total_params) == ("some-8b", "some-org/Some-8B", 8_190_735_360)
    assert asked == [("some-org/Some-8B", "config.json"), ("some-org/Some-8B", "hf_quant_config.json")]


def test_a_path_and_its_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    config = json.loads((PRESETS / "llama-3.1-8b.json").read_text())["config"]
    (folder / "config.json").write_text(json.dumps(config))
    for path in (folder, str(folder), folder / "config.json"):
        model = load_model(path)
        assert (model.name, model.total_params) == ("my-model", 8_030_261_248)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=r"config\.json"):
        load_model(tmp_path)


def test_hf_quant_config_beside_is_read(tmp_path: Path) -> None:
    config = json.loads((PRESETS / "qwen3-32b.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    scheme = load_model(tmp_path).checkpoint
    assert (scheme.dense_ffn.name, scheme.lm_head.name, scheme.kv_cache_dtype) == ("nvfp4", "bf16", "fp8")


def test_loading_one_preset_is_quick_and_reads_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = presets_module.read_json_object

    def spy(path: Path) -> dict[str, object]:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(presets_module, "read_json_object", spy)
    for cached in (presets_module._index, presets_module._aliases, presets_module._load_preset):
        cached.cache_clear()
    with cpu_limit(0.1):  # 2 ms measured
        load_model("llama-3.1-70b")
    assert [path.stem for path in opened] == ["llama-3.1-70b"]


def test_import_pulls_in_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'scipy', 'huggingface_hub'}"
    code = f"import sys, capacity.model; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# Retrained or dated versions whose config.json has the shapes of the preset that answers for them, and names that say
# a size or a version which the preset's own leaves out.
OF_EQUAL_SHAPES = {
    "mistralai/Devstral-Small-2505",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V2.5-1210",
    "mistralai/Mistral-Large-Instruct-2411", "mistral-large-2", "mistral-small-3", "phi-4-14b", "glm-4.7-355b",
    "minimax-m2-230b", "exaone-4", "exaone-4-32b", "mistral-small-3.2", "mistral-small-3.2-24b",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5",
}  # fmt: skip


def test_no_alias_stands_for_another_product() -> None:
    """Versions and sizes in an alias are the preset's own; where they are not, every answer says who answers."""
    index = json.loads((PRESETS / "index.json").read_text())
    noted = set()
    for preset, others in index.items():
        for alias in others:
            model = load_model(alias)
            assert model.name == preset
            own = load_model(preset)
            assert model.hf_id == (alias if "/" in alias else own.hf_id)
            strange = version_numbers(alias) - version_numbers(preset) - version_numbers(own.hf_id or "")
            said = model.notes[len(own.notes) :]
            assert bool(strange) == bool(said), alias
            if strange:
                noted.add(alias)
                assert f"{own.hf_id}), which has the same shapes" in said[0]
    assert noted == OF_EQUAL_SHAPES


@pytest.mark.parametrize(
    ("name", "preset", "positions"),
    [
        ("zai-org/GLM-4.6", "glm-4.6", 202_752),
        ("zai-org/GLM-4.5", "glm-4.5", 131_072),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1", 163_840),
        ("deepseek-ai/DeepSeek-V2.5", "deepseek-v2.5", 163_840),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-v0.1", 65_536),
    ],
)
def test_each_version_answers_for_itself(name: str, preset: str, positions: int) -> None:
    model = load_model(name)
    assert (model.name, model.hf_id, model.max_position_embeddings) == (preset, name, positions)
    assert not model.notes
