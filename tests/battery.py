"""Thousands of bad and hostile inputs, over all verbs, flags, files, configurations, traces and API parameters.

Each runs in a process of its own, forked from one that has loaded everything, and must end within 10 s and 2 GB with
the right exit code, in few clean lines. `python battery.py [EVERY]` runs every EVERY-th and prints what is at fault.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flag_walk import BASES as QUESTIONS
from fuzz import VALUES, changed
from hf_configs import LATENT, LLAMA, MOE
from parsers import PARSERS
from test_wrong_values import BASES as CALLS
from test_wrong_values import SLOW, WRONG, calls
from typer.main import get_command

LONGEST_S, MOST_BYTES, MOST_LINES, LONGEST_LINE = 10.0, 2 << 30, 6, 1000
SMALL = "llama-3.2-1b --gpu h100"
LOAD = "--isl 60 --osl 6 --request-rate 12 --num-prompts 8"
VERBS = {  # a short question of each verb
    **{verb: base.replace("llama-3.1-8b", "llama-3.2-1b") for verb, base in QUESTIONS.items()},
    **dict.fromkeys(("simulate", "batching"), f"{SMALL} {LOAD}"),
    **dict.fromkeys(("cost", "tornado", "advise", "stack"), f"{SMALL} {LOAD} --price 2"),
    "cascade": f"{SMALL} {LOAD} --price 2 --cache-hit-rate 0.2",
    "curve": f"{SMALL} --isl 60 --osl 6 --num-prompts 8 --slo ttft:p95:500ms --rates 4 --replications 1",
    "plan": f"llama-3.2-1b --gpus h100 {LOAD} --price 2 --slo ttft:p95:900ms --max-gpus 1 --time-limit-s 1",
    "fleet": f"llama-3.2-1b --gpus h100 {LOAD} --price 2 --slo ttft:p95:900ms --max-gpus 1 --time-limit-s 1",
    "frontier": "llama-3.2-1b --gpus h100 --isl 60 --osl 6 --loads 1",
    "models": "", "gpus": "", "engines": "", "schema": "fit", "kv": "llama-3.2-1b", "cache-curve": "trace.jsonl",
    "schedule": "scenario.json", "charts": f"{SMALL} --output charts", "diff": "one.toml one.toml",
    "side-by-side": "one.toml one.toml --slo ttft:p95:1s",
    "sweep": "sweep.toml --store store.sqlite", "from-vllm": "'vllm serve m' --gpu h100",
    "from-launch": "'vllm serve m' --gpu h100", "use-cases": "",
    "compare": "result.json --gpu h100", "calibrate": "absent.jsonl", "validate": "--campaign absent.toml",
    "watch": "absent.txt --gpu h100",
    "dashboard": "--host nowhere.invalid", "serve": "--host nowhere.invalid", "mcp": "",
}  # fmt: skip
NUMBERS = (
    "nan", "-1", "0", "inf", "1e400", "-1e30", "1e30", "1e-320", "9" * 5000, "x", "0x10", "1,5",
    "\x1b[31m1", "²", "1 2", "9223372036854775808", "--help", "None", "1e7", "[1]",
)  # fmt: skip
NEVER_NUMBERS = {"nan", "x", "\x1b[31m1", "1 2", "²"}
TEXTS = (
    "x", "\x1b]0;pwn\x07\x1b[31m", "[/red]", "[link=file:///etc/passwd]y[/link]", "../../etc/passwd",
    "a" * 6000, "~nosuchuser", "\udcff\udcfe", "$(touch pwned)", "{}", "null", "ü" * 400, "a\nb", "/",
    "/dev/zero", "-", "%s%n",
    "<script>alert(1)</script>",
    "'; DROP TABLE points", "{" * 900, "1e400", "a:b:c", "ttft:p101:1ms", ",,,", "\u202egnp.exe",
    "=1+1", "a,a,a", "-1,0",
)  # fmt: skip
SLOW_VERBS = {"side-by-side", "plan", "fleet", "tornado", "advise", "stack", "curve", "speculate", "charts"}
FILE_OF = {  # how a command line takes the text of a parser
    "config.json": "fit {} --gpu h100",
    "hardware profile": "fit llama-3.2-1b --gpu {}",
    "deployment": "estimate --deployment {}",
    "sweep": "sweep {} --store store.sqlite",
    "GPU prices": "estimate llama-3.2-1b --gpu h100 --isl 60 --osl 6 --batch-size 2 --price-file {}",
    "API prices": f"cost {SMALL} {LOAD} --price 2 --api-price-file {{}}",
    "trace": f"simulate {SMALL} --trace {{}}",
    "scenario": "schedule {}",
    "vLLM command": "from-launch TEXT --gpu h100",
    "speculative config": f"simulate {SMALL} {LOAD} --speculative-config TEXT",
    "KV transfer config": f"fit {SMALL} --kv-transfer-config TEXT",
    "service levels": f"simulate {SMALL} {LOAD} --slo TEXT",
    "benchmark result": "compare {} --gpu h100",
    "server log": "compare result.json --gpu h100 --server-log {}",
    "measurements": "calibrate {}",
    "campaign": "validate --device cpu --budget 0s --campaign {}",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, with `content` in its file, or a call of the API; and the exit codes that are right."""

    name: str
    words: tuple[str, ...]
    content: bytes | None = None
    call: tuple[str, str, Any] | None = None
    codes: tuple[int, ...] = (0, 1, 2)


def cases() -> list[Case]:
    """All, in an order that mixes them."""
    every = [*flag_cases(), *argument_cases(), *file_cases(), *config_cases(), *api_cases()]
    return sorted(every, key=lambda case: zlib.crc32(f"{case.name} {case.words}".encode("utf-8", "replace")))


def _rng(*names: str) -> random.Random:
    return random.Random(zlib.crc32(" ".join(names).encode()))


def flag_cases() -> Iterator[Case]:
    """Every flag of every verb, each with values that are none."""
    import shlex

    from capacity.cli.main import app

    for verb, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for option in command.make_context(verb, [], resilient_parsing=True).command.params:
            if option.param_type_name != "option" or "--help" in option.opts:
                continue
            flag = max(option.opts, key=len)
            numeric = option.metavar in ("int", "float")  # those of specs
            rng = _rng(verb, flag)
            for value in rng.sample(NUMBERS if numeric else TEXTS, 1 if verb in SLOW_VERBS else 3):
                words = (
                    verb,
                    *shlex.split(VERBS[verb]),
                    *([f"{flag}=x"] if option.is_flag else [flag, value]),
                )
                wrong = option.is_flag or (numeric and value in NEVER_NUMBERS)
                yield Case(f"{verb} {flag}", words, codes=(2,) if wrong else (0, 1, 2))


def argument_cases() -> Iterator[Case]:
    """What is no flag, in place of each argument and beside it; verbs that do not exist; half a command."""
    import shlex

    for verb, base in VERBS.items():
        words = shlex.split(base)
        for text in _rng(verb, "argument").sample(TEXTS, 8):
            if words and not words[0].startswith("-"):
                yield Case(f"{verb} argument", (verb, text, *words[1:]))
            yield Case(f"{verb} beside", (verb, *words, text))
        yield Case(f"{verb} twice", (verb, *words, *words))
        yield Case(f"{verb} cut", (verb, *words[: len(words) // 2]))
    for text in TEXTS:
        yield Case("verb", (text,), codes=(2,))
        yield Case("flag of no verb", (f"--{text}",), codes=(2,))


def file_cases() -> Iterator[Case]:
    """Sound files of every kind with something exchanged, damaged or cut."""
    for parser, line in FILE_OF.items():
        entry = PARSERS[parser]
        for number in range(70):
            rng = _rng(parser, str(number))
            text = rng.choice(entry.sound)
            for _ in range(rng.choice((1, 1, 2, 3))):
                text = changed(text, rng)
            raw = text.encode("utf-8", "backslashreplace")
            if number % 7 == 0:
                raw = bytes(byte ^ rng.randrange(256) if rng.random() < 0.02 else byte for byte in raw)
            if number % 11 == 0:
                raw = raw[: rng.randrange(len(raw) + 1)]
            yield _of_file(f"{parser} {number}", line, raw)


def _of_file(name: str, line: str, raw: bytes) -> Case:
    suffix = ".json" if line.startswith("fit {}") else ".toml"
    text = raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    words = tuple(text if word == "TEXT" else word.replace("{}", f"input{suffix}") for word in line.split())
    return Case(name, words, content=raw)


def config_cases() -> Iterator[Case]:
    """Every field of a model's configuration with every value that it should not have."""
    bases: list[dict[str, Any]] = [
        LLAMA,
        {**LLAMA, "model_type": "deepseek_v3", "first_k_dense_replace": 1, **LATENT},
        {**LLAMA, "model_type": "qwen3_moe", "head_dim": 16, **MOE},
        {**LLAMA, "model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6},
    ]
    added = {"head_dim", "rope_scaling", "quantization_config", "torch_dtype", "tie_word_embeddings", "layer_types",
             "text_config", "vision_config", "architectures", "_name_or_path", "num_nextn_predict_layers"}  # fmt: skip
    for number, base in enumerate(bases):
        for field in sorted({*base, *added}):
            for value in _rng(str(number), field).sample(VALUES, 5):
                raw = json.dumps({**base, field: value}).encode()
                yield _of_file(f"config {field}", FILE_OF["config.json"], raw)


def api_cases() -> Iterator[Case]:
    """Every parameter of every public function."""
    for function, parameter in calls():
        if function not in CALLS:
            continue
        values = _rng(function, parameter).sample(range(len(WRONG)), 1 if function in SLOW else 3)
        for number in values:
            yield Case(
                f"{function}({parameter})", (), call=(function, parameter, WRONG[number]), codes=(0, 2)
            )


def load() -> None:
    """What commands load, once: the forked ones begin with it."""
    import capacity_validate.calibrating
    import capacity_validate.comparing  # noqa: F401
    from typer.testing import CliRunner

    from capacity.cli.main import app

    for line in (
        f"simulate {SMALL} {LOAD} --speculator eagle3",
        f"estimate {SMALL} --isl 9 --osl 3 --batch-size 2",
    ):
        CliRunner().invoke(app, line.split())


def run(case: Case, folder: Path) -> str | None:
    """What is at fault with how this ends, or None."""
    for file in folder.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    _beside(folder)
    if case.content is not None:
        name = next((w for w in case.words if w in ("input.json", "input.toml")), "input.toml")
        (folder / name).write_bytes(case.content)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        child = os.fork()
        if not child:
            _be(case, folder, said.fileno(), complained.fileno())
        ended = _waited(child)
        texts = []
        for stream in (said, complained):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return _fault(case, ended, *texts) or _left(folder)


def _beside(folder: Path) -> None:
    """The sound files that questions are about."""
    from benchmark_files import vllm_result
    from test_wrong_values import SHARED

    sound = {"one.toml": "deployment", "sweep.toml": "sweep", "scenario.json": "scenario"}
    for name, parser in sound.items():
        (folder / name).write_text(PARSERS[parser].sound[0])
    (folder / "two.toml").write_text(PARSERS["deployment"].sound[0].replace("= 9", "= 8"))
    (folder / "trace.jsonl").write_text(SHARED)
    (folder / "result.json").write_text(json.dumps(vllm_result()))


def _be(case: Case, folder: Path, said: int, complained: int) -> None:
    """The child: it never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(complained, 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w") for n in (0, 1, 2))
        sys.stderr.reconfigure(errors="backslashreplace")
        resource.setrlimit(resource.RLIMIT_AS, (3 * MOST_BYTES, 3 * MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES // 4, MOST_BYTES // 4))
        code = _called(*case.call) if case.call else _commanded(case.words)
        sys.stdout.flush()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _commanded(words: Sequence[str]) -> int:
    from capacity.cli.main import main

    sys.argv = ["capacity", *words]
    main()
    return 0


def _called(function: str, parameter: str, value: Any) -> int:
    from test_wrong_values import called

    from capacity.base.errors import CapacityError

    try:
        called(function, parameter, value)
    except CapacityError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:
        if parameter in ("progress", "observer") and callable(value):
            return 0  # its own error
        raise
    return 0


def _waited(child: int) -> tuple[int | None, int]:
    """Exit code (None: it had to be ended) and the most memory it had, in bytes."""
    descriptor = os.pidfd_open(child)
    over = not select.select([descriptor], [], [], 3 * LONGEST_S)[0]  # this machine may be shared
    os.close(descriptor)
    if over:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    late = usage.ru_utime + usage.ru_stime > LONGEST_S
    return None if over or late else os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024


def _fault(case: Case, ended: tuple[int | None, int], said: str, complained: str) -> str | None:
    code, most_bytes = ended
    if code is None:
        return f"no end within {LONGEST_S:g} s"
    if "Traceback" in complained or code not in case.codes:
        return f"exit {code}: {complained.strip()[-400:]!r}"
    if most_bytes > MOST_BYTES:
        return f"{most_bytes >> 20} MiB"
    if not set(said + complained).isdisjoint({"\x1b", "\x07", "\x9b", "\u202e"}):
        return f"raw escapes: {(said + complained)[:200]!r}"
    lines = complained.splitlines()
    if code == 2 and not (1 <= len(lines) <= MOST_LINES):
        return f"exit 2 in {len(lines)} lines: {complained[:200]!r}"
    if code == 2 and max(map(len, lines)) > LONGEST_LINE:
        return f"a line of {max(map(len, lines))} characters: {complained[:120]!r}"
    return None


def _left(folder: Path) -> str | None:
    """A shell was let in, or a file was written where none was asked for."""
    return "a shell ran what it should not" if list(folder.glob("pwn*")) else None


def battery(every: int = 1, offset: int = 0) -> tuple[int, list[str]]:
    """How many ran, and what is at fault."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    load()
    folder = Path(tempfile.mkdtemp())
    chosen = cases()[offset::every]
    faults = [f"{case.name}: {fault}\n    {_shown(case)}" for case in chosen if (fault := run(case, folder))]
    shutil.rmtree(folder)
    return len(chosen), faults


def _shown(case: Case) -> str:
    if case.call:
        return f"{case.call[0]}({case.call[1]}={case.call[2]!r:.80})"
    return f"{' '.join(map(repr, case.words))[:300]} {(case.content or b'')[:1500]!r}"


if __name__ == "__main__":
    count, found = battery(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    )
    print(*found, sep="\n")
    print(f"{count} cases, {len(found)} at fault; {dict(Counter(f.split(': ')[1][:12] for f in found))}")
    sys.exit(1 if found else 0)
