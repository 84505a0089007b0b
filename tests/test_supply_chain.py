"""What the package brings along: bounded on both sides, listed, and said where security is spoken of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_USERS = ("hub", "charts", "dashboard", "dask", "parquet", "gpu", "serve", "mcp")


def requirements() -> list[Requirement]:
    texts = [*PROJECT["dependencies"]]
    for extra in OF_USERS:
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def test_every_dependency_has_both_bounds() -> None:
    for requirement in requirements():
        operators = {part.operator for part in requirement.specifier}
        assert operators >= {">=", "<"}, requirement


def test_every_dependency_is_in_the_list_by_hand() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert [each.name for each in requirements() if each.name not in text] == []


def test_each_dependency_is_justified_with_its_size_and_uses() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| (\w+) \| \d+ \| \d+ \| \S.+ \|$", text, re.MULTILINE)
    assert sorted(names) == sorted(Requirement(need).name for need in PROJECT["dependencies"])


def test_common_questions_do_not_load_the_largest_dependencies() -> None:
    code = """
import sys, capacity
load = {"input_len": 100, "output_len": 10}
capacity.fit("llama-3.1-8b", gpu="h100")
capacity.estimate("llama-3.1-8b", gpu="h100", batch_size=8, **load)
capacity.simulate("llama-3.1-8b", gpu="h100", request_rate=2, num_prompts=20, **load)
capacity.plan("llama-3.1-8b", gpus=("h100",), request_rate=2, objective="gpus", slo="ttft:p95:1s", **load)
print(sorted({"pandas", "plotly", "scipy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_all_extras_are_those_of_users() -> None:
    assert PROJECT["optional-dependencies"]["all"] == [f"llm-capacity[{','.join(OF_USERS)}]"]


def test_the_bill_of_materials_names_what_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "sbom.py")], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    named = {part["name"]: part for part in bill["components"]}
    needed = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert needed <= set(named)
    known = {part["bom-ref"] for part in named.values()} | {bill["metadata"]["component"]["bom-ref"]}
    for line in bill["dependencies"]:
        assert {line["ref"], *line["dependsOn"]} <= known
    assert named["numpy"]["purl"] == f"pkg:pypi/numpy@{named['numpy']['version']}"


def test_the_constraints_name_one_version_of_each_dependency_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    names = {re.sub(r"[-_.]+", "-", each.name).lower(): each for each in requirements()}
    for name, requirement in names.items():
        if name not in ("torch", "nvidia-ml-py"):  # whoever knows the machine chooses these
            assert requirement.specifier.contains(pinned[name]), requirement
    assert f"{PROJECT['name']} {PROJECT['version']}" in lines[0]


def test_requirements_have_the_constraints_versions_with_hashes() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    text = (ROOT / "docs" / "requirements.txt").read_text(encoding="utf-8")
    assert f"{PROJECT['name']} {PROJECT['version']}" in text.splitlines()[0]
    entries = re.findall(
        r"^(\S+)==(\S+).*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    assert len(entries) == sum(line[0].isalnum() for line in text.splitlines())
    versions = {name: version for name, version, _ in entries}
    assert [
        line for line in constraints[1:] if versions.get(line.split("==")[0]) != line.split("==")[1]
    ] == []


def test_advisories_are_entries_of_the_bill_of_materials() -> None:
    named = set(re.findall(r"CVE-\d+-\d+", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "sbom.py")], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    refs = {part["bom-ref"] for part in bill["components"]}
    entries = {entry["id"]: entry for entry in bill["vulnerabilities"]}
    assert {"CVE-2026-48818", "CVE-2024-47874"} <= set(entries) <= named
    assert {affected["ref"] for entry in entries.values() for affected in entry["affects"]} <= refs
    numpy = next(part for part in bill["components"] if part["name"] == "numpy")
    assert len(numpy["properties"]) > 10
    assert numpy["licenses"]


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_what_contributors_are_told_of_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:capacity|docs|tests|benchmarks|hardware_profiles)/[\w/.-]+)`", text))
    named -= {"hardware_profiles/NAME.toml", "capacity/deployment/engines/ENGINE.toml"}
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
