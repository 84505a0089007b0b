"""Every flag and argument that takes a file, with every file that is none: one line, exit code 2, at once."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from benchmark_files import vllm_result
from typer.main import get_command
from typer.testing import CliRunner

from capacity.base import external_files
from capacity.base.errors import CapacityError
from capacity.cli.main import app

pytestmark = pytest.mark.ci  # many seconds

SMALL = "llama-3.1-8b --gpu h100"
LOAD = "--isl 60 --osl 6 --request-rate 3 --num-prompts 5"
READERS = {  # what takes a file: `{}` is its path
    "model": "fit {} --gpu h100",
    "gpu": "fit llama-3.1-8b --gpu {}",
    "hall": "plan {} --power-budget 1MW --gpus h100",
    "draft": f"simulate {SMALL} {LOAD} --draft {{}}",
    "deployment": "estimate --deployment {}",
    "price_file": f"estimate {SMALL} --isl 60 --osl 6 --batch-size 2 --price-file {{}}",
    "api_price_file": f"cost {SMALL} {LOAD} --price 2 --api-price-file {{}}",
    "trace": f"simulate {SMALL} --trace {{}}",
    "from_launch": f"estimate {LOAD} --gpu h100 --from-launch {{}}",
    "command": "from-launch {} --gpu h100",
    "add": "models add {}",
    "file": "schedule {}",
    "files": "diff {} {}",
    "spec": "sweep {} --store none.sqlite",
    "campaign": "validate --device cpu --campaign {}",
    "measurements": "calibrate {}",
    "results": "compare {} --gpu h100",
    "source": "watch {} --gpu h100",
    "state": "watch result.json --gpu h100 --state {}",
    "server_log": "compare result.json --gpu h100 --server-log {}",
    # files that a launch command names
    "--config": "from-launch 'vllm serve org/m --config {}' --gpu h100",
    "--extra_llm_api_options": "from-launch 'trtllm-serve org/m --extra_llm_api_options {}' --gpu h100",
    "Modelfile": "from-launch 'ollama create m -f {}' --gpu h100",
}
KINDS = {  # of files, by the reader that reads them here
    "a model configuration": "model",
    "a hardware profile": "gpu",
    "a deployment": "deployment",
    "a hall": "hall",
    "a sweep": "spec",
    "a list of prices": "price_file",
    "a scenario": "file",
    "a campaign": "campaign",
    "a benchmark result": "results",
    "a server log": "server_log",
    "a watch state": "state",
    "a launch file": "--config",
}
ELSEWHERE = {
    "a measurement file": "validate/test_cases.py",  # kinds of files that no command names, with their tests
    "a safetensors index": "model/test_safetensors.py",
    "a sweep's results": "planning/sweeps/test_sweep_results.py",
    "a validation report": "validate/test_submission.py",
    "a submission": "validate/test_submission.py",
}
WRITTEN = {
    "write_deployment",
    "records",
    "series",
    "timeline",
    "gantt",
    "save_trace",
    "save_trace_for",
    "chart",
    "output",
    "store",
    "export",
    "metrics_file",
    "alert_rules",
    "grafana_dashboard",
    "report_file",
    "out",
    "name",
}
FOLDERS = {"profiles"}  # tests/hardware/test_profile.py has what they may hold
NO_FILES = {"currency", "format", "download", "acceptance_spread", "speculative_config", "kv_transfer_config"}
NO_FILES |= {"scheduler"}  # a folder or a Python; test_installed_vllm.py
NO_FILES |= {"num_gpu_blocks_override", "override_generation_config", "seed", "power_budget"}
NOT_HERE: set[str] = set()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that are none, by what is wrong with them."""
    folder = tmp_path_factory.mktemp("hostile")
    written = {
        "binary": os.urandom(3000),
        "deep JSON": b'{"a":' + b"[" * 50_000,
        "deep TOML": b"a = " + b"[" * 50_000,
        "a long number": b'{"a": ' + b"9" * 6000 + b"}",
        "a long number in TOML": b"a = " + b"9" * 6000,
        "a gzip bomb": gzip.compress(b" " * (200 << 20)),
        "damaged gzip": gzip.compress(os.urandom(5000))[:800],
        "zero bytes": b"\0" * 5000,
        "escapes": b"\x1b]0;pwn\x07\x1b[31m = 1",
        "nothing": b"",
    }
    found = {}
    for number, (name, content) in enumerate(written.items()):
        found[name] = folder / f"{number}.toml"
        found[name].write_bytes(content)
    (folder / "a-folder.toml").mkdir()
    (folder / "loop.toml").symlink_to(folder / "loop.toml")
    os.mkfifo(folder / "pipe.toml")
    found |= {name: folder / f"{name}.toml" for name in ("a-folder", "loop", "pipe", "absent")}
    found |= {"a long name": folder / f"{'n' * 300}.toml", "no such user": Path("~nosuchuser/x.toml")}
    found |= {"/dev/zero": Path("/dev/zero")}
    return found


def _takes_files() -> Iterator[tuple[str, str]]:
    for verb, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.make_context(verb, [], resilient_parsing=True).command.params:
            words = f"{parameter.name} {parameter.metavar} {getattr(parameter, 'help', '')}"
            if re.search(r"\b(files?|folder|CSV|JSON|TOML|log)\b|_file|_log", words):
                yield verb, str(parameter.name)


def test_no_reader_is_left_out() -> None:
    named = {name for _, name in _takes_files()}
    assert {*KINDS, *ELSEWHERE} == set(get_args(external_files.FileKind))
    assert all((Path(__file__).parents[1] / file).is_file() for file in ELSEWHERE.values())
    assert named - {*READERS, *WRITTEN, *FOLDERS, *NO_FILES} == set()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("reader", sorted(set(READERS) - NOT_HERE))
def test_every_file_that_is_none(
    reader: str, hostile: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(external_files, "PIPE_TIMEOUT_S", 0.1)
    smaller = _Limits((kind, min(most, 1 << 20)) for kind, most in external_files.MAX_BYTES.items())
    monkeypatch.setattr(external_files, "MAX_BYTES", smaller)  # the same refusals, in less time
    (tmp_path / "result.json").write_text(json.dumps(vllm_result()))
    for wrong, path in hostile.items():
        words = [word.replace("{}", str(path)) for word in shlex.split(READERS[reader])]
        with pytest.raises(CapacityError) as refused:
            CliRunner().invoke(app, words, standalone_mode=False, catch_exceptions=False)
        text = str(refused.value)
        assert refused.value.exit_code == 2, (wrong, text)
        assert not {"\n", "\x1b"} & set(text), (wrong, text)
        assert len(text) < 600, (wrong, text)
    assert {kind for kind, name in KINDS.items() if name == reader} <= smaller.used


class _Limits(dict[str, int]):
    """Limits by the kind of file, and the kinds that were read."""

    def __init__(self, limits: Iterable[tuple[str, int]]) -> None:
        super().__init__(limits)
        self.used: set[str] = set()

    def __getitem__(self, kind: str) -> int:
        self.used.add(kind)
        return super().__getitem__(kind)
