"""The box of the start page fills every page, further settings reach every question, and advice is one click."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capacity_app.dropped_files import SERVER, TEXT, TRACE, sort_files
from capacity_app.example_files import example_server, example_trace
from capacity_app.more_settings import read_settings, search_options
from capacity_app.pages import PAGES
from capacity_app.side import Side, read_side

Open = Callable[..., Any]
COMMAND = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-num-seqs 256 --what 3"
FLAGS = (
    "--max-num-seqs 64 --gpu-memory-utilization 0.8 --max-num-batched-tokens 4096 --enable-prefix-caching --dtype "
    'bfloat16 --data-parallel-size 2 --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\''
)


def asked(opened: Any, text: str) -> Any:
    opened.at.text_area(key="question").set_value(text).run()
    return opened


def go_to(opened: Any, page: str) -> Any:
    opened.at.switch_page(f"capacity_app/app_pages/{page}.py")
    opened.at.run()
    return opened


def links(opened: Any) -> list[str]:
    return [link.proto.page for link in opened.at.main.get("page_link")]


def test_a_pasted_command_fills_the_estimate_in_two_actions(dashboard: Open) -> None:
    opened = asked(dashboard("start"), COMMAND)
    assert links(opened) == ["estimate", "plan", "fit"]
    assert "Not understood: \\-\\-what" in [caption.value for caption in opened.at.main.caption]
    estimate = go_to(opened, "estimate").settled()
    assert estimate.refusals == []
    command = estimate.code("shell")
    for words in ("llama-3.1-70b", "--tensor-parallel-size 4", "--max-num-seqs 256", "--request-rate 4"):
        assert words in command
    assert estimate.kpis["TTFT"].endswith("ms")


def test_a_pill_that_is_deselected_is_left_out_and_a_new_question_replaces_the_old(dashboard: Open) -> None:
    opened = asked(dashboard("start"), COMMAND)
    pills = next(group for group in opened.at.get("button_group") if group.key == "question_pills")
    assert pills.value == ["model", "tensor_parallel_size", "max_num_seqs"]
    pills.set_value(["model"]).run()
    inputs = opened.inputs()
    assert (inputs["model"].value, inputs["tp"].value) == ("llama-3.1-70b", 1)
    assert opened.at.text_input(key="more").value == ""
    asked(opened, "qwen3-8b on h200")
    inputs = opened.inputs()
    assert {key: inputs[key].value for key in ("model", "gpu", "tp")} == {
        "model": "qwen3-8b",
        "gpu": "h200-sxm-141gb",
        "tp": 1,
    }


def test_a_question_without_gpus_is_a_plan_in_two_actions(dashboard: Open) -> None:
    opened = asked(dashboard("start"), "cheapest GPUs for qwen3-8b chat, 50 users")
    assert links(opened) == ["plan", "estimate", "fit"]
    assert not any(caption.value.startswith("Not understood") for caption in opened.at.main.caption)
    opened.at.session_state["plan_n"] = 50  # a short search
    plan = go_to(opened, "plan").settled()
    assert plan.refusals == []
    assert plan.kpis["To rent"]
    assert any("vllm serve Qwen/Qwen3-8B" in code.value for code in plan.at.code)


def test_plain_words_fill_the_plan(dashboard: Open) -> None:
    plan = go_to(asked(dashboard("start"), "70B chat on 8 H100, 1000 users"), "plan")
    command = plan.code("shell")
    for words in (
        "capacity plan llama-3.3-70b",
        "--gpus h100-sxm-80gb",
        "--slo ttft:p99:450ms",
        "--use-case chat",
    ):
        assert words in command
    assert "--request-rate 33.3333333333333" in command


@pytest.mark.parametrize("text", ["hello", "{", '{"a": 1}', "vllm serve", "a: [\nb", "\u202e\x00"])
def test_nothing_is_refused(dashboard: Open, text: str) -> None:
    opened = asked(dashboard("start"), text)
    assert opened.refusals == []
    said = [caption.value for caption in opened.at.main.caption]
    assert any("Not understood" in each or "info" in each for each in said) or not text.isprintable()


@pytest.mark.parametrize("page", ["estimate", "simulate", "plan"])
def test_every_flag_reaches_the_question_of_every_page(dashboard: Open, page: str) -> None:
    command = (
        dashboard(page, more=FLAGS, load="arrivals at a rate", sim_requests="50").settled().code("shell")
    )
    for words in (
        "--max-num-seqs 64",
        "--gpu-memory-utilization 0.8",
        "--max-num-batched-tokens 4096",
        "--dtype bfloat16",
    ):
        assert words in command
    names = ("--speculators eagle3", "--prefix-caching") if page == "plan" else ("--speculator eagle3",)
    assert all(name in command for name in names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "more" in page.read_keys()], ids=lambda page: page.name
)
def test_no_page_refuses_the_usual_flags(dashboard: Open, page: Any) -> None:
    assert dashboard(page.name, more=FLAGS).refusals == []


def test_a_setting_that_a_page_does_not_use_is_said_and_a_wrong_one_too(dashboard: Open) -> None:
    opened = dashboard("fit", more="--max-num-seqs 64 --enable-prefix-caching --what --dtype x")
    said = " ".join(caption.value for caption in opened.at.sidebar.caption).replace("\\", "")
    assert "Without effect on this page: --enable-prefix-caching" in said
    assert "Not used: --what; --dtype is x: must be" in said
    assert "--max-num-seqs 64" in opened.code("shell")
    assert opened.refusals == []


def test_flags_with_an_input_of_their_own_move_there(dashboard: Open) -> None:
    opened = dashboard("fit")
    opened.at.text_input(key="more").set_value("-tp 2 --max-num-seqs 64 --what").run()
    assert opened.inputs()["tp"].value == 2
    assert opened.at.text_input(key="more").value == "--max-num-seqs 64 --what"


def test_read_settings_are_those_that_the_library_accepts() -> None:
    settings = {"max_num_seqs": 64, "enable_prefix_caching": True, "data_parallel_size": 2}
    pool = {"gpu": "h100-sxm-80gb"}
    assert read_settings("fit", settings, pool) == {"max_num_seqs": 64, "data_parallel_size": 2}
    assert read_settings("estimate", settings, {**pool, "request_rate": 1.0}) == settings
    assert read_settings("quantize", settings, pool) == {"max_num_seqs": 64}
    assert search_options(read_settings("plan", settings, pool)) == {
        "max_num_seqs": 64,
        "prefix_caching": True,
        "data_parallel_sizes": 2,
    }


def test_a_side_keeps_its_settings_on_another_page_and_takes_none_of_the_other_side() -> None:
    lengths = {"input_len": 1024, "output_len": 256}
    first = Side(
        page="simulate",
        model="llama-3.1-8b",
        options={
            "gpu": "l4-24gb",
            "max_num_seqs": 8,
            "enable_prefix_caching": True,
            "speculator": "ngram",
            **lengths,
        },
        cost={},
    )
    assert read_side(first.link_text) == first
    current = Side(
        page="fit", model="qwen3-8b", options={"gpu": "h200-sxm-141gb", "block_size": 32, **lengths}, cost={}
    )
    there = first.convert_to_page(current)
    assert there.options == {"gpu": "l4-24gb", "max_num_seqs": 8, "speculator": "ngram", **lengths}


@pytest.mark.ci
def test_advice_in_a_verdict_is_applied_with_one_click(dashboard: Open) -> None:
    """Too many requests for the KV cache are preempted; the verdict names the limit of requests that avoids this."""
    traffic = {"isl": "256", "osl": "1500", "rate": "2", "sim_requests": "300"}
    opened = dashboard("simulate", gpu="l4-24gb", context="4096", **traffic).settled()
    advised = next(button for button in opened.at.button if button.label.startswith("Apply --max-num-seqs "))
    advised.click().run()
    flag = advised.label.removeprefix("Apply ")
    assert opened.at.text_input(key="more").value == flag
    assert advised.label not in [button.label for button in opened.settled().at.button]
    assert not any("thrash" in text for text in opened.refusals)


@pytest.mark.ci
def test_a_change_that_helps_is_applied_with_one_click(dashboard: Open) -> None:
    opened = dashboard("advise", adv_n="60", rate="8")
    opened.at.button(key="run_advise").click().run()
    opened.settled().settled()
    change = next(button for button in opened.at.button if button.label.startswith("Apply: "))
    before = opened.code("shell")
    change.click().run()
    assert opened.code("shell") != before
    assert opened.refusals == []


def test_dropped_files_are_sorted_by_the_page_that_reads_them(tmp_path: Path) -> None:
    ((name, trace),) = example_trace().items()
    files = {name: trace, "serve.sh": COMMAND.encode(), "config.json": b'{"model_type": "llama"}'}
    files |= {"bench.json": b'{"model_id": "x", "duration": 1.0}', "empty": b""}
    files |= {"server.log": example_server()["server.log"]}
    for each, content in files.items():
        (tmp_path / each).write_bytes(content)
    kinds = sort_files([str(tmp_path / each) for each in files])
    assert {kind: {Path(path).name for path in paths} for kind, paths in kinds.items()} == {
        TRACE: {name},
        SERVER: {"server.log"},
        TEXT: {"serve.sh", "config.json", "bench.json", "empty"},
    }


@pytest.mark.parametrize("page", ["cache", "sweeps", "validate"])
def test_a_page_that_reads_a_file_opens_with_an_example(dashboard: Open, page: str) -> None:
    opened = dashboard(page).settled().settled()
    assert opened.refusals == []
    assert any(info.value.startswith("Example: ") for info in opened.at.info)
    assert opened.kpis
    assert opened.pictures()
