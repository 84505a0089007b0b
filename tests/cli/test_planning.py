"""The planner's verbs on the command line: answers, files, exit codes, and one line for what cannot be."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from capacity.report.schemas import json_schema

PLAN = (
    "plan", "llama-3.1-8b", "--gpus", "h100", "--tensor-parallel-sizes", "1", "--quantizations", "default",
    "--kv-cache-dtypes", "auto", "--max-num-batched-tokens", "default", "--workers", "1",
    "--input-len", "300", "--output-len", "30", "--num-prompts", "100", "--replications", "1",
)  # fmt: skip
SLO = ("--slo", "ttft:p95:500ms", "tpot:p95:40ms")


def test_plan_prints_the_answer_and_writes_files_to_act_on(run: Any, tmp_path: Path) -> None:
    code, out, _ = run(
        *PLAN,
        *SLO,
        "--request-rate",
        "10",
        "--price",
        "h100=2.5",
        "--format",
        "json",
        "--output",
        str(tmp_path),
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["schema"] == "capacity/plan/v1"
    best = answer["ranked"][0]
    assert best["cost"]["usd_per_hour"] == 2.5 * best["billed_gpus"]
    assert best["cost"]["usd_per_month"] == pytest.approx(best["cost"]["usd_per_hour"] * 730)
    assert all(level["low_s"] <= level["value_s"] <= level["high_s"] for level in best["trial"]["levels"])
    names = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "launch-vllm.sh", "kubernetes.yaml", "benchmark.sh", "plan.json"} <= names
    page = (tmp_path / "report.html").read_text()
    shown = re.sub(r' xmlns(:xlink)?="[^"]*"', "", page.split("<h2>Assumptions")[0])
    assert "http" not in shown  # nothing is loaded from elsewhere
    assert "<svg" in page
    assert html.escape(best["label"]) in page


def test_a_table_for_people(run: Any) -> None:
    asked = (*PLAN, *SLO, "--request-rate", "10", "--objective", "gpus")
    code, out, _ = run(*asked)
    assert code == 0
    assert "Rent 1 x h100-sxm-80gb TP1" in out
    assert "vllm serve meta-llama/" in out
    assert "--detail" in out
    code, out, _ = run(*asked, "--detail")
    assert code == 0
    assert "Deployments that meet the SLO" in out
    assert "simulated" in out
    assert "not searched" in out


def test_an_engine_that_nothing_launches_is_said_before_the_search(run: Any, tmp_path: Path) -> None:
    asked = (
        *PLAN,
        "--slo",
        "e2el:p95:60s",
        "--request-rate",
        "1",
        "--objective",
        "gpus",
        "--engines",
        "static",
    )
    code, _, err = run(*asked, "--output", str(tmp_path))
    assert code == 0
    assert err.splitlines()[0].startswith("note: static has no launch command: ")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "plan.json"}


def test_ctrl_c_prints_what_was_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(_: Any, snapshot: Any) -> None:
        if snapshot.best is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr("capacity.cli.search_progress.ProgressLines.__call__", tell)
    asked = (*PLAN, *SLO, "--request-rate", "10", "--objective", "gpus", "--gpus", "h100,a100")
    code, out, err = run(*asked)
    assert code == 130
    assert "Rent 1 x " in out
    assert "not proved: the search was interrupted" in out
    assert err.splitlines()[-1] == "interrupted"


def test_an_unmet_slo_is_exit_code_1(run: Any) -> None:
    code, out, _ = run(*PLAN, "--slo", "ttft:p95:1ms", "--request-rate", "10", "--objective", "gpus")
    assert code == 1
    assert "No deployment in the search space meets the SLO" in out
    assert "ttft:p95:1ms" in out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((*SLO, "--request-rate", "10"), "--price-tier"),
        (("--request-rate", "10", "--objective", "gpus"), "--slo"),
        ((*SLO, "--request-rate", "10", "--objective", "beauty"), "objective"),
        ((*SLO, "--request-rate", "10", "--objective", "gpus", "--max-gpus", "0"), "max_gpus"),
        ((*SLO, "--request-rate", "10", "--objective", "gpus", "--workers", "0"), "workers"),
        (("--slo", "ttft:p95", "--request-rate", "10", "--objective", "gpus"), "ttft:p95"),
        ((*SLO, "--request-rate", "10", "--objective", "gpus", "--speculators", "eagle4"), "Did you mean"),
        ((*SLO, "--request-rate", "10", "--objective", "gpus", "--acceptance", "7"), "acceptance"),
    ],
)
def test_bad_input_is_one_line(run: Any, arguments: tuple[str, ...], problem: str) -> None:
    code, out, err = run(*PLAN, *arguments)
    assert code == 2
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1


def test_what_does_not_fit_is_exit_code_1_in_one_line(run: Any) -> None:
    code, _, err = run(
        *PLAN,
        *SLO,
        "--request-rate",
        "10",
        "--objective",
        "gpus",
        "--max-model-len",
        "131072",
        "--gpus",
        "l4",
    )
    assert code == 1
    assert err.startswith("DoesNotFit")
    assert "SLO" not in err


POOL = ("llama-3.1-8b", "--gpu", "h100")
REQUESTS = ("--input-len", "300", "--output-len", "30", "--num-prompts", "150")
LOAD = (*REQUESTS, "--request-rate", "10")


def test_cost(run: Any) -> None:
    arguments = ("cost", *POOL, *LOAD, "--price", "2.5", "--replicas", "2", "--api-input-price", "0.2")
    code, out, _ = run(*arguments, "--api-output-price", "0.6", "--format", "json")
    assert code == 0
    bill = json.loads(out)
    assert bill["usd_per_month"] == pytest.approx(2 * 2.5 * 730)
    assert bill["break_even"]["own_usd_per_month"] == bill["usd_per_month"]
    code, out, _ = run(
        *arguments, "--api-output-price", "0.6", "--documents", "1000", "--deadline-hours", "1"
    )
    assert "Comparison with an API" in out
    assert "Batch job" in out
    code, _, err = run("cost", *POOL, *LOAD)
    assert code == 2
    assert "--price-tier" in err


def test_cost_of_overloaded_deployment_says_so_on_line_2_and_exits_with_1(run: Any) -> None:
    load = ("--use-case", "chat", "--users", "2000", "--price-tier", "on-demand")
    code, out, _ = run("cost", "llama-3.1-8b", "--gpu", "h100", *load)
    assert code == 1
    assert out.splitlines()[1].startswith("overloaded: ")
    assert "needed: 5 replicas (5 GPUs), $14,235 a month" in out
    code, out, _ = run("cost", "llama-3.1-8b", "--gpu", "h100", "--replicas", "5", *load)
    assert code == 0
    assert out.splitlines()[1].startswith("stable: ")


def test_curve(run: Any, tmp_path: Path) -> None:
    code, out, _ = run(
        "curve",
        *POOL,
        *REQUESTS,
        "--slo",
        "ttft:p95:200ms",
        "--requests-per-user-hour",
        "10",
        "--peak-rate",
        "60",
        "--output",
        str(tmp_path / "c.html"),
    )
    assert code == 0
    assert "knee" in out
    assert "users" in out
    assert "resampled traffic" in out
    page = (tmp_path / "c.html").read_text()
    assert "<svg" in page
    assert "stroke-dasharray" in page  # the line of the service level
    assert "<td>users</td>" in page
    day = page.partition("<caption>Replicas by the hour")[2].partition("</table>")[0]
    assert day.count("<tr>") == 25
    code, _, err = run("curve", *POOL, *REQUESTS, "--rates", "1,x")
    assert code == 2
    assert "--rates" in err


def test_tornado_and_advise(run: Any) -> None:
    code, out, _ = run("tornado", *POOL, *LOAD, "--price", "2")
    assert code == 0
    assert "-20.0% / +20.0%" in out
    code, out, _ = run("stack", *POOL, *LOAD, "--price", "2", "--order", "bf16,kv-cache")
    assert code == 0
    assert "2 KV cache" in out
    code, out, _ = run("advise", *POOL, *LOAD, "--price", "2", "--format", "json")
    assert code == 0
    assert json.loads(out)["advice"][0]["flags"].startswith("--")


def test_diff_of_two_files(run: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    assert run("simulate", *POOL, *LOAD, "--write-deployment", str(first))[0] == 0
    code, out, err = run(
        "from-vllm",
        "vllm serve llama-3.1-8b -q fp8 --served-model-name x",
        "--gpu",
        "h100",
        "--output",
        str(second),
    )
    assert (code, out) == (0, "")
    assert "--served-model-name" in err
    code, out, _ = run("diff", str(first), str(second))
    assert code == 0
    assert "quantization" in out
    assert "TPOT" in out


def test_a_pasted_command_in_place_of_flags(run: Any) -> None:
    code, out, err = run(
        "cost",
        "--from-vllm",
        "vllm serve llama-3.1-8b -tp 2 --seed 7",
        "--gpu",
        "h100",
        "--price",
        "2",
        *LOAD,
        "--format",
        "json",
    )
    assert code == 0
    assert "ignored because it does not change any answer: --seed" in err
    assert json.loads(out)["num_gpus"] == 2


def test_sweep(run: Any, tmp_path: Path) -> None:
    spec = tmp_path / "s.toml"
    spec.write_text(
        'schema = "capacity/sweep/v1"\nquestion = "fit"\n[fixed]\nmodel = "llama-3.1-8b"\n'
        '[vary]\ngpu = ["h100", "l4"]\n'
    )
    store = str(tmp_path / "s.sqlite")
    code, out, _ = run(
        "sweep", str(spec), "--store", store, "--workers", "1", "--export", str(tmp_path / "rows.csv")
    )
    assert code == 0
    assert out.startswith("2 points: 2 done")
    assert run("sweep", str(spec), "--store", store, "--workers", "1")[1].startswith(
        "2 points: 2 already done"
    )
    assert (tmp_path / "rows.csv").read_text().count("\n") == 3


@pytest.mark.ci
def test_a_deployment_file_in_place_of_flags(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    written = ("--write-deployment", str(file))
    assert run("simulate", *POOL, *LOAD, "--max-num-seqs", "64", "--replicas", "2", *written)[0] == 0
    flags = (*POOL, *LOAD, "--max-num-seqs", "64", "--replicas", "2", "--price", "2", "--format", "json")
    for verb in ("cost", "tornado", "advise", "stack"):
        asked, stored = (
            run(verb, *flags),
            run(verb, "--deployment", str(file), "--price", "2", "--format", "json"),
        )
        assert asked == stored
        assert asked[0] == 0
    flagged = run("cost", "--deployment", str(file), "--gpu", "h200", "--price", "2", "--format", "json")
    assert "h200" in json.loads(flagged[1])["deployment"]
    curve = ("curve", "--deployment", str(file), "--rates", "5", "--format", "json")
    assert "2 replicas of 1 x h100" in json.loads(run(*curve)[1])["deployment"]
    text = file.read_text()
    file.write_text(text.replace("[[pools]]", '[[pools]]\ngpu = "h200"\n\n[[pools]]', 1))
    code, _, err = run("cost", "--deployment", str(file), "--price", "2")
    assert code == 2
    assert "has 2 pools" in err
    file.write_text(text + '\n[service]\nrouter = "least-kv"\n')
    code, _, err = run("cost", "--deployment", str(file), "--price", "2")
    assert (code, err) == (0, "not used: router\n")


def test_a_comparison_without_traffic_says_where_traffic_goes(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('model = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\n')
    code, out, err = run("diff", str(file), str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "add [traffic]" in err


def test_hall_file_is_planned_within_a_power_budget(run: Any, tmp_path: Path) -> None:
    hall = tmp_path / "hall.toml"
    hall.write_text(
        '[[models]]\nmodel = "llama-3.1-8b"\nslo = ["ttft:p95:1s"]\n'
        "request_rate = 60\ninput_len = 500\noutput_len = 50\n"
    )
    space = (
        "--gpus",
        "h100",
        "--tensor-parallel-sizes",
        "1",
        "--quantizations",
        "default",
        "--power-cap",
        "65%",
    )
    code, out, _ = run("plan", str(hall), "--power-budget", "50kW", *space, "--format", "json")
    answer = json.loads(out)
    assert (code, answer["schema"], answer["served_share"]) == (0, "capacity/hall/v1", 1.0)
    jsonschema.validate(answer, json_schema("hall"))
    one = (
        "llama-3.1-8b",
        "--slo",
        "ttft:p95:1s",
        "--request-rate",
        "60",
        "--input-len",
        "500",
        "--output-len",
        "50",
    )
    code, out, _ = run("plan", *one, "--power-budget", "50kW", *space, "--format", "json")
    assert json.loads(out)["models"] == answer["models"]
    code, _, _ = run("plan", *one, "--request-rate", "400", "--power-budget", "4kW", *space)
    assert code == 1
    for words, said in (
        ((str(hall), *space), "add --power-budget"),
        ((str(hall), "--power-budget", "2", *space), "such as 2MW"),
        ((str(hall), "--power-budget", "2MW", "--output", "x", *space), "--output has no effect"),
    ):
        code, _, err = run("plan", *words)
        assert code == 2
        assert said in err
