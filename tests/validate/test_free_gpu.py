"""The notebook for a free GPU, which no machine here executes: its cells parse and its commands exist."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from capacity_validate.campaigns import load_campaign, parse_budget
from capacity_validate.devices import DeviceFacts
from capacity_validate.profile_match import provisional_profile

import capacity
from capacity.cli.main import app
from capacity.hardware import write_profile

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "notebooks" / "free-gpu.ipynb"
DOCUMENT = json.loads(NOTEBOOK.read_bytes())
CODE = [cell for cell in DOCUMENT["cells"] if cell["cell_type"] == "code"]
SOURCES = ["".join(cell["source"]) for cell in CODE]
COMMANDS = [shlex.split(source[1:]) for source in SOURCES if source.startswith("!capacity ")]
OTHERS_S = 240  # installation, imports, fits and reports


def test_it_has_no_output_and_asks_for_a_t4() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)
    assert DOCUMENT["metadata"]["colab"]["gpuType"] == "T4"
    assert len({cell["id"] for cell in DOCUMENT["cells"]}) == len(DOCUMENT["cells"])


@pytest.mark.parametrize("source", SOURCES)
def test_each_cell_is_python_or_one_command(source: str) -> None:
    if source[0] in "!%":
        assert "\n" not in source
        assert re.match(r"!capacity |!nvidia-smi |%pip install --quiet llm-capacity", source)
    else:
        ast.parse(source)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_only_flags_that_exist(command: list[str]) -> None:
    verb = typer.main.get_command(app).commands[command[1]]  # type: ignore[attr-defined]
    context = verb.make_context(command[1], command[2:])
    assert context.params


def test_it_takes_less_than_ten_minutes() -> None:
    (measured,) = (command for command in COMMANDS if "--budget" in command)
    budget_s = parse_budget(measured[measured.index("--budget") + 1])
    assert load_campaign(measured[measured.index("--campaign") + 1]).name == "quick"
    assert budget_s + OTHERS_S < 600


def test_its_python_cells_run_on_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells between the commands, on the files that a run writes; then the estimate on a T4's profile."""
    facts = DeviceFacts(
        kind="cuda", index=0, name="Tesla T4", memory_total_bytes=15 * 2**30, memory_free_bytes=15 * 2**30,
        compute_units=40, cache_bytes=4 * 2**20, compute_capability="7.5", sm_clock_max_hz=1.59e9,
        memory_clock_max_hz=5.001e9, memory_bus_bits=256,
    )  # fmt: skip
    profile = provisional_profile(facts)
    written = write_profile(profile.model_copy(update={"name": f"{profile.name}@mine"}), tmp_path / "results")
    (tmp_path / "results" / "report.json").write_text(
        '{"verdict": "good", "failures": ["f"], "remarks": ["r"]}'
    )
    monkeypatch.chdir(tmp_path)
    exec("\n".join(source for source in SOURCES if source[0] not in "!%"), {})
    assert capsys.readouterr().out == f"good\nf\nr\nresults/{written.name}\n"
    answer = capacity.estimate("llama-3.2-1b", gpu=str(written), input_len=500, output_len=100, batch_size=4)
    assert answer.tpot_s.value > 0
