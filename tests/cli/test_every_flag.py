"""Every flag of every verb changes the answer, or is refused in one line that says what it would need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flag_walk import BASES, BESIDE, CASCADE, INSTEAD, LOAD, SMALL, VALUES, ask, options, spelled
from long_forms import mostly_slow
from recorded_files import hashed, json_lines

from capacity.deployment import Pool
from capacity.deployment.engines import engine_names, find_engine

pytestmark = pytest.mark.ci  # many seconds

WHERE = {"format", "deployment", "from-launch", "write-deployment", "profiles", "download"}
NOT_WALKED = {
    **dict.fromkeys(WHERE, "where the question, its GPUs or its answer stand: tests of their own"),
    **dict.fromkeys(
        ("records", "series", "timeline", "gantt", "save-trace", "save-trace-for", "chart", "output"),
        "files beside the answer",
    ),
    **dict.fromkeys(
        ("detail", "help-all", "interval"), "how much of the same answer, or of the help, is shown"
    ),
    "currency": "how amounts are shown, which is tested; JSON stays in US dollars",
    "cluster": "the same numbers by other machines, which is tested",
    "scheduler": "needs a vLLM; test_installed_vllm.py",
    "engine-loop": "the same numbers by another loop, which is tested",
    "list": "another question, which is tested",
    "order": "of the GPUs of `--gpu all`, which is tested",
    "textbook": "another question, which is tested",
}
SAME = {  # answers that a flag leaves as they are at the value tried, and why that is right
    ("explain", "block-size"): "rounds the check that the batch fits",
    (
        "fit",
        "num-speculative-tokens",
    ): "memory of a draft does not depend on it, and vLLM's JSON always has it",
    ("explain", "max-loras"): "memory alone, which is only checked",
    ("speculate", "block-size"): "rounds the largest batch",
    ("scale", "block-size"): "rounds the largest batch",
    ("batching", "max-loras"): "memory alone, of which there is enough",
    ("stack", "quantization"): "FP8 is what it takes for its step where nobody says",
    ("stack", "kv-cache-dtype"): "FP8 is what it takes for its step where nobody says",
    **{
        (verb, name): "the price is given by --price"
        for verb in ("quantize", "scale", "cost", "cascade", "tornado", "advise", "stack")
        for name in ("price-tier", "price-provider", "price-instance")
    },
}
SAME |= {(verb, "api-server-count"): "noted as not used: it stands in many launch lines" for verb in BASES}
FILE_FLAGS = {"sample-interval": "of the file that --output series= writes"}
QUICK = ("fit", "estimate", "explain", "simulate", "speculate", "attention-io")
SLOW = tuple(verb for verb in BASES if verb not in QUICK)
VERBS = [*QUICK, *(pytest.param(verb, marks=pytest.mark.slow) for verb in SLOW)]
NO_EFFECT = re.compile("has no effect without")
ENGINES = [name for name in engine_names() if not find_engine(name).baseline]
WALKED_ENGINES = mostly_slow(ENGINES, ["sglang", "tensorrt-llm"])
OFF = "it has none, as the flag says"
SAME_UNDER = {  # answers that a flag of a pool leaves as they are under an engine
    ("deepspeed-mii", "enable-prefix-caching"): OFF,
    ("hf-transformers", "enable-prefix-caching"): OFF,
    ("hf-transformers", "enable-chunked-prefill"): OFF,
    ("ollama", "enable-chunked-prefill"): OFF,
    ("tensorrt-llm", "enable-chunked-prefill"): "off is its default",
    ("tensorrt-llm", "cudagraph-padding"): "off is its default",
}
OF_A_DEPLOYMENT = ("gpu", "engine", "replicas", "role", "route-up-to-tokens", "route-up-to-requests")


@pytest.mark.parametrize("verb", VERBS)
def test_a_flag_changes_the_answer_or_is_refused(verb: str) -> None:
    base = ask(f"{verb} {BASES[verb]}")
    assert base.answer is not None, base.refusal
    silent = []
    for name in (name for name, _ in options(verb) if name not in NOT_WALKED):
        assert name in VALUES, f"a new flag needs a value in flag_walk.py: {verb} --{name}"
        alone = ask(f"{verb} {BASES[verb]} {spelled(name)}")
        if (
            alone.answer == base.answer
            and (verb, name) not in SAME
            and not _counts(f"{verb} {BASES[verb]}", name)
        ):
            silent.append(name)
    assert not silent, f"`{verb}` takes these, and they change nothing: {silent}"


def _counts(line: str, name: str) -> bool:
    """Whether a flag changes the answer beside those that it depends on."""
    beside = BESIDE.get(name)
    if beside is None:
        return False
    without, with_it = ask(f"{line} {beside}"), ask(f"{line} {beside} {spelled(name)}")
    return without.answer is not None and without.answer != with_it.answer


@pytest.mark.parametrize("engine", WALKED_ENGINES)
def test_a_flag_changes_the_answer_under_an_engine_or_is_refused(engine: str) -> None:
    gguf = engine in ("llama.cpp", "ollama")
    line = f"simulate {SMALL} {LOAD} --engine {engine} --max-model-len 4096{' -q gguf-q4_k_m' * gguf}"
    base, silent = ask(line), []
    assert base.answer is not None, base.refusal
    names = [name.replace("_", "-") for name in Pool.model_fields]
    for name in (name for name in names if name in VALUES and name not in OF_A_DEPLOYMENT):
        same = ask(f"{line} {spelled(name)}").answer == base.answer
        if same and (engine, name) not in SAME_UNDER and ("simulate", name) not in SAME:
            beside = re.sub(r"--engine \S+", "", BESIDE.get(name, ""))
            before, after = ask(f"{line} {beside}"), ask(f"{line} {beside} {spelled(name)}")
            if after.answer == before.answer:
                silent.append(name)
    assert not silent, f"{engine} takes these, and they change nothing: {silent}"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_setting_that_an_engine_lacks_is_refused_with_the_engines_that_have_it(engine: str) -> None:
    for field in find_engine(engine).lacks:
        name = field.replace("_", "-")
        flag = f"--{name}" if VALUES[name] in ("on", "off") else spelled(name)
        refusal = ask(f"simulate {SMALL} {LOAD} --engine {engine} {flag}").refusal
        assert f"{flag}: {engine}@" in refusal
        named = re.search(r"has no such setting; use .*--engine ([\w. -]+), or leave it out", refusal)
        assert named is not None, refusal
        assert all(field not in find_engine(other).lacks for other in named[1].split(" or "))


def test_a_flag_that_is_refused_alone_counts_beside_what_it_names(tmp_path: Path) -> None:
    """Else the refusal would hide a flag that does nothing at all."""
    (tmp_path / "trace.csv").write_text(_arrivals())
    (tmp_path / "coarse.jsonl").write_text(json_lines(hashed(tick=200)))
    base, idle = f"simulate {BASES['simulate']}", []
    for name in (name for name, _ in options("simulate") if name not in NOT_WALKED):
        if name not in INSTEAD and not NO_EFFECT.search(ask(f"{base} {spelled(name)}").refusal):
            continue
        line, beside = base, BESIDE.get(name, "")
        if name in INSTEAD:
            (tmp_path / "cascade.toml").write_text(CASCADE)
            files = {
                "cascade": tmp_path / "cascade.toml",
                "trace": tmp_path / "trace.csv",
                "coarse": tmp_path / "coarse.jsonl",
            }
            line = f"simulate {INSTEAD[name]}".format(**files)
        without, with_it = ask(f"{line} {beside}"), ask(f"{line} {beside} {spelled(name)}")
        if name in FILE_FLAGS:
            continue
        if without.answer is None or with_it.answer is None or without.answer == with_it.answer:
            idle.append((name, without.refusal or with_it.refusal))
    assert not idle


def _arrivals() -> str:
    """Sessions of three turns on a clock of whole seconds, the later ones more urgent."""
    lines = [f"{turn * 2},{300 + 9 * chat},40,{chat},{-chat}" for turn in range(3) for chat in range(6)]
    return "\n".join(("arrival_s,prompt_tokens,output_tokens,session,priority", *lines, ""))
