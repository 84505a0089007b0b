"""Plug-ins: `docs/template` is installed and used as any other package; broken ones are one line; none cost time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOAD = ("--input-len", "512", "--output-len", "64", "--batch-size", "8")
IN_PYTHON = """
import capacity
load = {"input_len": 512, "output_len": 64, "batch_size": 8}
answer = capacity.tokens_per_dollar("own-model", gpu="own-gpu", **load, price="2.50")
print(repr(answer))
run = capacity.simulate(
    "own-model", gpu="own-gpu", input_len=200, output_len=20, request_rate=5, num_prompts=20, policy="shortest-first"
)
print(run.warnings[-2])
print(len(capacity.grid("fit", {"gpu": ["own-gpu", "h100"]}, model="own-model")))
"""
BROKEN = """[capacity.routers]
bad = broken_plugins:X
wrong = json:dumps
[capacity.policies]
bad = broken_plugins:X
[capacity.profiles]
bad = broken_plugins:X
[capacity.models]
bad = json:nothing
[capacity.readers]
bad = broken_plugins:X
[capacity.verbs]
bad = broken_plugins:X
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder), *sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "110"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def printed(folder: Path, *arguments: str) -> str:
    done = run(folder, "-m", "capacity", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
def test_the_template_is_installed_and_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "template", tmp_path / "source")
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, tmp_path / "source"], check=True, timeout=300)
    log = target / "log.csv"
    rows = (f"{1000 + i / 10},{200 + i % 7 * 300},{50 + i % 5}" for i in range(100))
    log.write_text("received_s,tokens_in,tokens_out\n" + "\n".join(rows) + "\n", encoding="utf-8")
    routed = ("simulate", "own-model", "--gpu", "own-gpu", "--replicas", "4", "--router", "two-choices")
    assert "own-model on 4 replicas of 1 x own-gpu, vllm@0.33, log" in printed(
        target, *routed, "--trace", str(log)
    )
    asked = ("tokens-per-dollar", "own-model", "--gpu", "own-gpu", *LOAD)
    assert "tokens per usd: " in printed(target, *asked, "--price", "2.50")
    assert "From the package capacity-template 0.1.0." in printed(target, "--help")
    assert "own-gpu" in printed(target, "gpus")
    assert "own-model" in printed(target, "models")
    assert '"const": "capacity/tokens-per-dollar/v1"' in printed(target, "schema", "tokens-per-dollar")
    done = run(target, "-c", IN_PYTHON)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert lines[0] == "<tokens-per-dollar: own-model, 1 x own-gpu>"
    assert lines[1].startswith("Scheduled by shortest-first; ")
    assert lines[2] == "2"


SIMULATE = ("simulate", "llama-3.1-8b", "--gpu", "h100", "--num-prompts", "5")
TWICE = (*SIMULATE, *LOAD[:4], "--request-rate", "1", "--replicas", "2")


@pytest.mark.parametrize(
    ("arguments", "subject", "reason"),
    [
        ((*TWICE, "--router", "bad"), "router 'bad'", "cannot be loaded (RuntimeError: one two): update"),
        ((*TWICE, "--router", "wrong"), "router 'wrong'", "must be a subclass of Router"),
        (("fit", "llama-3.1-8b", "--gpu", "bad"), "hardware profile 'bad'", "RuntimeError"),
        (("fit", "bad", "--gpu", "h100"), "model 'bad'", "AttributeError"),
        ((*SIMULATE, "--trace", "log.csv"), "trace reader 'bad'", "RuntimeError"),
        (("bad", "--x"), "verb 'bad'", "RuntimeError"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_a_broken_plugin_is_one_line_with_its_package(
    arguments: Sequence[str], subject: str, reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "broken_pack-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-pack\nVersion: 2.0\n")
    (folder / "entry_points.txt").write_text(BROKEN)
    (tmp_path / "broken_plugins.py").write_text('raise RuntimeError("one\\ntwo")\n')
    (tmp_path / "log.csv").write_text("some,columns\n1,2\n")
    done = run(tmp_path, "-m", "capacity", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"InvalidInput: {subject} of the package broken-pack 2.0" in done.stderr
    assert reason in done.stderr


def test_known_names_do_not_search_for_plugins(tmp_path: Path) -> None:
    code = (
        "import sys, capacity; from capacity.base import plugins\n"
        "plugins._entry_points = lambda group: sys.exit(f'searched {group}')\n"
        "print(capacity.fit('llama-3.1-8b', gpu='h100'))\n"
        "print(capacity.estimate('llama-3.1-8b', gpu='h100', input_len=99, output_len=9, batch_size=1))\n"
        "run = capacity.simulate('llama-3.1-8b', gpu='h100', replicas=2, router='random', input_len=99,\n"
        "    output_len=9, request_rate=1, num_prompts=5)\n"
        "import capacity.cli.main as main; sys.argv = ['capacity', 'fit', '--help']; main.main()\n"
    )
    done = run(tmp_path, "-c", code)
    assert "searched" not in done.stderr
    assert done.returncode == 0, done.stderr
