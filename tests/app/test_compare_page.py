"""Your server: what its files contain, the comparison, the calibration, and the variant on every page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capacity_app.error_display import INTERNAL_ERROR, escape_except_code, escape_markdown, replace_flags
from capacity_app.sessions import runner
from capacity_app.variants import KEPT_S, MAX_VARIANTS, BrowserStore, SessionVariants, Variant
from capacity_validate import calibrate, compare
from capacity_validate.calibrating_runs import make_variant
from capacity_validate.comparison import error_text, metric_rows, metric_title, predicted_texts
from copied_commands import printed

import capacity
from capacity.hardware import load_profile, profile_names, user_profiles_directory, write_profile
from capacity.hardware.adjustment import NO_ADJUSTMENT
from capacity.report.display import time_and_interval
from capacity.report.figures.chart import four_digits
from capacity.service.jobs import Task

Open = Callable[..., Any]
RESULT: dict[str, Any] = {
    "backend": "vllm",
    "endpoint_type": "openai",
    "model_id": "llama-3.1-8b",
    "num_prompts": 2,
    "request_rate": 1.0,
    "max_concurrency": None,
    "duration": 3.0,
    "completed": 2,
    "total_input_tokens": 300,
    "total_output_tokens": 20,
    "input_lens": [100, 200],
    "output_lens": [10, 10],
    "start_times": [0.0, 1.0],
    "ttfts": [0.3, 0.3],
    "itls": [[0.01] * 9, [0.01] * 9],
    "request_throughput": 0.67,
    "mean_ttft_ms": 300.0,
    "mean_tpot_ms": 10.0,
    "output_throughput": 6.7,
}
H100, MINE = "h100-sxm-80gb", "h100-sxm-80gb@mine"
LOG = b"""INFO [api.py:1] vLLM API server version 0.30.0
INFO [utils.py:2] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'kv_cache_dtype': 'fp8'}
INFO [kv_cache_utils.py:1229] GPU KV cache size: 844,000 tokens
"""
WITHOUT = {
    name: value
    for name, value in RESULT.items()
    if name not in ("input_lens", "output_lens", "itls", "ttfts")
}


def given(dashboard: Open, files: dict[str, bytes], **query: str) -> Any:
    """The page with these files, after reading and comparing them."""
    return upload(dashboard("compare", **query), files)


def upload(opened: Any, files: dict[str, bytes]) -> Any:
    """The page with these files added."""
    place = opened.at.file_uploader(key="cmp_results")
    for name, content in files.items():
        place.upload(name, content, "application/octet-stream")
    place.run()
    return opened.settled().settled()


def table(opened: Any, title: str) -> list[dict[str, str]]:
    """A table of the page, by the beginning of its title."""
    (found,) = [each for each in opened.at.dataframe if each.proto.alt.startswith(title)]
    rows: list[dict[str, str]] = found.value.to_dict("records")
    return rows


def calibrated(opened: Any) -> Any:
    """The page after a click on Calibrate."""
    opened.at.button(key="run_calibrate").click().run()
    return opened.settled()


def test_page_library_and_copied_command_agree(
    dashboard: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.dumps(RESULT).encode()
    opened = given(dashboard, {"result.json": content}, gpu="l40s-48gb", weights="fp8")
    (tmp_path / "result.json").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    direct = compare(["result.json"], model="llama-3.1-8b", gpu="l40s-48gb", quantization="fp8")
    (run,) = direct.runs
    assert run.causes
    assert opened.refusals == [
        escape_except_code(replace_flags(f"Likely cause: {cause}")) for cause in run.causes
    ]
    assert table(opened, "result.json:") == metric_rows(run.metrics)
    assert opened.at.info[0].value == escape_markdown(direct.verdict)
    for label, name in (
        ("TTFT", "mean_ttft_ms"),
        ("TPOT", "mean_tpot_ms"),
        ("Tokens/s", "output_throughput"),
    ):
        assert opened.kpis[f"{label} error"] == error_text(run.error(name))
        row = next(row for row in run.metrics if row.name == name)
        below = next(kpi.delta for kpi in opened.at.metric if kpi.label == f"{label} error")
        assert f"predicted {' ('.join(predicted_texts(row))})" in below
        assert below.endswith("inside") is row.inside
    by_command = json.loads(printed(f"{opened.code('shell')} --format json", monkeypatch, capsys))
    assert by_command == json.loads(json.dumps(direct.to_dict()))
    found: dict[str, Any] = {}
    exec(opened.code("python"), found)
    assert found["answer"] == direct


def test_what_a_file_lacks_is_said_and_can_come_from_the_sidebar(dashboard: Open) -> None:
    content = json.dumps(
        {name: value for name, value in WITHOUT.items() if name != "total_input_tokens"}
    ).encode()
    lacking = given(dashboard, {"result.json": content})
    assert len(lacking.refusals) == 1
    assert "lengths of its requests" in lacking.refusals[0]
    assert "uploads" not in lacking.refusals[0]
    means = given(dashboard, {"result.json": json.dumps(WITHOUT).encode()})
    assert "Over 1 run" in means.at.info[0].value
    filled = given(
        dashboard,
        {"result.json": content, "again.json": content + b" "},
        cmp_lengths="true",
        isl="150",
        osl="10",
        cmp_arrivals="by concurrency",
        concurrency="2",
    )
    assert "Over 2 run" in filled.at.info[0].value
    assert "--input-len 150 --output-len 10" in " ".join(filled.code("shell").replace("\\\n", " ").split())
    assert "--concurrency 2" in filled.code("shell")
    begun = [heading.value.partition(escape_markdown(":"))[0] for heading in filled.at.subheader]
    assert begun[-2:] == [escape_markdown("result.json"), escape_markdown("again.json")]


@pytest.mark.parametrize("content", [b"{}", b"\x00\xff", b'{"backend": "![x](http://e.com)"}'])
def test_a_hostile_result_is_one_line(dashboard: Open, content: bytes) -> None:
    opened = given(dashboard, {"../../etc/x.json": content})
    assert not opened.at.exception
    assert len(opened.refusals) == 1
    assert INTERNAL_ERROR not in opened.refusals
    assert "\n" not in opened.refusals[0]
    assert "](http" not in opened.refusals[0]


def test_a_metric_is_named_as_people_say_it_and_nothing_is_less_than_zero_by_nothing() -> None:
    assert metric_title("p95_ttft_ms") == "p95 TTFT, ms"
    assert metric_title("output_throughput") == "output tokens/s"
    assert [error_text(error) for error in (-0.0001, 0.00049, -0.123, None)] == [
        "+0.0 %",
        "+0.0 %",
        "-12.3 %",
        "-",
    ]


def test_settings_in_the_files_replace_the_sidebars(dashboard: Open) -> None:
    files = {"result.json": json.dumps(RESULT).encode(), "server.log": LOG}
    opened = given(dashboard, files, model="llama-3.1-70b", kv="auto")
    rows = {row["setting"]: (row["value"], row["from"]) for row in table(opened, "Settings")}
    assert rows["model"] == ("llama-3.1-8b", "server.log")
    assert rows["engine"] == ("vllm@0.30", "server.log")
    assert rows["KV cache dtype"] == ("fp8", "server.log")
    assert rows["KV tokens"] == ("844,000", "server.log")
    assert rows["GPU"] == (H100, "the sidebar")
    assert rows["quantization"] == ("", "in no file")
    assert [row["kind"] for row in table(opened, "Files")] == ["benchmark result", "engine log"]
    (run,) = table(opened, "Runs in")
    assert (run["load"], run["input + output tokens"], run["mean TTFT, ms"]) == (
        "1 requests/s",
        "150 + 10",
        "300",
    )
    assert any("844,000 tokens, from the server log" in caption.value for caption in opened.at.caption)


def test_a_file_that_cannot_be_read_is_one_line_and_the_others_stay(dashboard: Open) -> None:
    files = {"result.json": json.dumps(RESULT).encode(), "server.log": LOG}
    opened = given(dashboard, files)
    verdict = opened.at.info[0].value
    other = LOG.replace(b"844,000", b"52,000")
    upload(opened, {**files, "notes.txt": b"hello", "other.log": other})
    assert not opened.at.exception
    assert len(opened.at.error) == 2
    assert escape_markdown("notes.txt: is neither") in opened.at.error[0].value
    assert escape_markdown("KV caches of 52,000 and 844,000 tokens") in opened.at.error[1].value
    assert opened.at.info[0].value == verdict
    assert [row["read"] for row in table(opened, "Files")][2:] == ["nothing", "nothing"]


def test_files_that_contradict_each_other_keep_the_earlier_answer(dashboard: Open) -> None:
    files = {"result.json": json.dumps(RESULT).encode()}
    opened = given(dashboard, files)
    verdict = opened.at.info[0].value
    other = json.dumps({**RESULT, "model_id": "meta-llama/Llama-3.1-70B-Instruct"}).encode()
    upload(opened, {**files, "other.json": other})
    (error,) = opened.at.error
    assert "names model" in error.value
    assert opened.at.info[0].value == verdict
    assert "Stale" in " ".join(each.proto.body for each in opened.at.main if hasattr(each.proto, "body"))


def test_a_variant_is_selected_everywhere_in_this_session_only(dashboard: Open, tmp_path: Path) -> None:
    before = profile_names()
    own = sorted(user_profiles_directory().glob("*")) if user_profiles_directory().is_dir() else []
    content = json.dumps(RESULT).encode()
    opened = calibrated(given(dashboard, {"result.json": content, "server.log": LOG}, model="llama-3.1-70b"))
    direct = [tmp_path / "result.json", tmp_path / "server.log"]
    for path, text in zip(direct, (content, LOG), strict=True):
        path.write_bytes(text)
    expected = calibrate(direct, gpu=H100, out=tmp_path)
    shown = table(opened, "Errors before")
    assert [row["measured"] for row in shown] == [four_digits(figure.measured) for figure in expected.figures]
    assert [row["error after"] for row in shown] == [
        error_text(f.after / f.measured - 1) for f in expected.figures
    ]
    opened.at.button(key="cmp_use").click().run()
    assert any("selected on every page" in each.value for each in opened.at.success)
    assert opened.kpis["TTFT error"] == error_text(compare(direct, gpu=H100).runs[0].error("mean_ttft_ms"))
    assert opened.at.session_state["plan_gpus"] == [MINE, "l40s-48gb"]
    opened.at.switch_page("capacity_app/app_pages/estimate.py").run()
    opened.settled()
    assert opened.refusals == []
    widgets = opened.inputs()
    assert [widgets[key].value for key in ("gpu", "model", "kv")] == [MINE, "llama-3.1-8b", "fp8"]
    options = {"gpu": MINE, "kv_cache_dtype": "fp8", "input_len": 1024, "output_len": 256, "batch_size": 32}
    by_library = capacity.estimate("llama-3.1-8b", **options, profiles=tmp_path)
    assert opened.kpis["TPOT"] == time_and_interval(by_library.tpot_s)[0]
    stranger = dashboard("estimate", gpu=MINE).settled()
    assert MINE not in stranger.inputs()["gpu"].options
    assert "does not accept" in stranger.refusals[0]
    assert profile_names() == before
    assert (sorted(user_profiles_directory().glob("*")) if user_profiles_directory().is_dir() else []) == own


def test_no_file_counts_twice_in_a_variant(tmp_path: Path) -> None:
    variants = SessionVariants()
    assert variants.source_of(H100, ("a",)) == (H100, ())
    variants.add(MINE, Variant(folder=tmp_path / "1", gpu=H100, profiles=(), files=("a",)))
    assert variants.source_of(MINE, ("a",)) == (H100, ())
    assert variants.source_of(MINE, ("b",)) == (MINE, (tmp_path / "1",))
    assert variants.source_of(MINE, ("a", "b")) == (H100, ())
    variants.add(MINE, Variant(folder=tmp_path / "2", gpu=MINE, profiles=(tmp_path / "1",), files=("b",)))
    assert variants.source_of(MINE, ("b",)) == (MINE, (tmp_path / "1",))
    assert variants.source_of(MINE, ("a",)) == (H100, ())
    assert variants.source_of(MINE, ("c",)) == (MINE, (tmp_path / "2",))


def test_a_worker_finds_the_variants_of_its_task_only(tmp_path: Path) -> None:
    write_profile(make_variant(load_profile(H100), "mine", NO_ADJUSTMENT), tmp_path)
    arguments = {"model": "llama-3.1-8b", "gpu": MINE}
    one, other = (Task(function="capacity:fit", arguments=arguments, profiles=p) for p in ((tmp_path,), ()))
    jobs = [runner().submit(task) for task in (one, other, one)]
    assert runner().join(60)
    assert [job.status for job in jobs] == ["done", "failed", "done"]
    assert "no hardware profile" in str(jobs[1].error)
    assert one.key != other.key


def test_variants_are_deleted_with_their_session() -> None:
    variants = SessionVariants()
    root = variants.root
    assert root.is_dir()
    del variants
    assert not root.exists()


def test_variants_are_found_by_their_token_only_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now_s = BrowserStore(), time.monotonic()
    mine, other = SessionVariants(), SessionVariants()
    store.keep(mine)
    store.keep(other)
    assert (store.find(mine.token), store.find(other.token)) == (mine, other)
    assert store.find("") is None
    assert len(mine.token) >= 32
    monkeypatch.setattr("capacity_app.variants.time.monotonic", lambda: now_s + KEPT_S - 60)
    assert store.find(mine.token) is mine
    monkeypatch.setattr("capacity_app.variants.time.monotonic", lambda: now_s + KEPT_S + 60)
    assert (store.find(mine.token), store.find(other.token)) == (mine, None)


def test_number_of_browsers_and_variants_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capacity_app.variants.MAX_BROWSERS", 2)
    store, three = BrowserStore(), [SessionVariants() for _ in range(3)]
    for each in three:
        store.keep(each)
    assert [store.find(each.token) for each in three] == [None, *three[1:]]
    for number in range(MAX_VARIANTS + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        three[0].add(f"h100@{number}", Variant(folder=folder, gpu=H100, profiles=(), files=(str(number),)))
    assert list(three[0].by_name) == [f"h100@{number}" for number in range(1, MAX_VARIANTS + 1)]
    assert not (tmp_path / "0").exists()


def test_too_many_files_are_one_line(dashboard: Open) -> None:
    opened = given(dashboard, {f"{number}.txt": b"no result %d" % number for number in range(33)})
    assert escape_markdown("33 files, at most 32; the others are not read") in opened.at.error[0].value
    assert len(table(opened, "Files")) == 32


@pytest.mark.ci  # several seconds
def test_the_example_is_calibrated_in_three_actions(dashboard: Open) -> None:
    opened = dashboard("compare")
    opened.settled().settled().settled()
    assert len(opened.at.error) == 0
    assert [row["kind"] for row in table(opened, "Files")] == [
        *("/metrics scrape", "benchmark result", "benchmark result", "engine log")
    ]
    errors = [
        abs(float(kpi.value.removesuffix(" %"))) for kpi in opened.at.metric if kpi.label == "TPOT error"
    ]
    assert min(errors) > 10
    calibrated(opened)
    after = [abs(float(row["error after"].removesuffix(" %"))) for row in table(opened, "Errors before")]
    assert max(after) < 10
    opened.at.button(key="cmp_use").click().run()
    for page in ("fit", "simulate", "cost", "plan", "quantization"):
        opened.at.switch_page(f"capacity_app/app_pages/{page}.py").run()
        assert opened.settled().refusals == []
        assert opened.inputs()["gpu"].value == MINE
