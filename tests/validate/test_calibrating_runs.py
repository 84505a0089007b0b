"""Learning from runs: planted constants are found within the stated error, contradictions named, variants taken."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capacity_validate import calibrate, compare
from capacity_validate.calibrating_runs import RunCalibration, make_variant
from capacity_validate.comparison import MetricRow
from replayed_servers import GPU, MODEL, RANKS, result_file, server
from scipy.stats import chi2

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.deployment import Pool
from capacity.hardware import load_profile, write_profile
from capacity.hardware.adjustment import NAMES, NO_ADJUSTMENT, Adjustment
from capacity.hardware.measured_loads import REPEATED
from capacity.hardware.spreads import prior_adjustment
from capacity.hardware.what_if import add_gpu
from capacity.planning.sizing.sized_estimate import estimate
from capacity.pool.resolve import resolve
from capacity.step.shape import decode_shape
from capacity.step.time_classes import TIME_CLASSES

PLANTED = {  # about one standard deviation of the prior each
    "memory": 0.06,
    "compute": 0.12,
    "all_reduce": 0.3,
    "host": 0.4,
    "eager": -0.3,
    "front_end": 0.008,
}


def learnt(sources: list[Path], folder: Path, **options: Any) -> RunCalibration:
    answer = calibrate(sources, **{"gpu": GPU, "tensor_parallel_size": RANKS, "out": folder, **options})
    assert isinstance(answer, RunCalibration)
    return answer


def adjustment(folder: Path, name: str = "mine") -> Adjustment:
    found = load_profile(f"{GPU}@{name}", [folder]).adjustment
    assert found is not None
    return found


def test_planted_constants_are_found_within_their_stated_error(tmp_path: Path) -> None:
    slow = server(**PLANTED)
    runs = [result_file(tmp_path / f"{n}.json", slow, n) for n in (1, 16, 64)]
    answer = learnt(runs, tmp_path)
    found = adjustment(tmp_path)
    off = np.array([PLANTED.get(name, 0.0) for name in NAMES]) - found.mean_vector
    squares = off @ np.linalg.solve(found.covariance_matrix, off)
    assert squares < chi2.ppf(0.95, len(NAMES))
    assert not answer.contradictions
    for figure in answer.figures:
        assert abs(figure.after / figure.measured - 1) < 0.5 * abs(figure.before / figure.measured - 1)
    deviations = np.sqrt(np.diag(found.covariance_matrix))
    known = prior_adjustment("vllm", load_profile(GPU).name, is_moe=False)
    before = np.sqrt(np.diag(known.covariance_matrix))
    assert deviations[NAMES.index("memory")] < 0.9 * before[NAMES.index("memory")]
    assert deviations[NAMES.index("experts")] == pytest.approx(before[NAMES.index("experts")])


def test_the_variant_predicts_a_load_that_was_not_measured(tmp_path: Path) -> None:
    slow = server(**PLANTED)
    learnt([result_file(tmp_path / f"{n}.json", slow, n) for n in (1, 16, 64)], tmp_path)
    load: dict[str, Any] = {"input_len": 3000, "output_len": 300, "concurrency": 8, "random_range_ratio": 0.4}
    asked = {"tensor_parallel_size": RANKS, "profiles": tmp_path, **load}
    before, after = (estimate(MODEL, gpu=gpu, **asked) for gpu in (GPU, f"{GPU}@mine"))
    write_profile(make_variant(load_profile(GPU), "truth", NO_ADJUSTMENT.shift_means(PLANTED)), tmp_path)
    truth = estimate(MODEL, gpu=f"{GPU}@truth", **asked)
    for name in ("ttft_s", "tpot_s"):
        was, now, real = (getattr(each, name).value for each in (before, after, truth))
        assert abs(now / real - 1) < 0.5 * abs(was / real - 1), name


@pytest.mark.parametrize(("gpu", "slower"), [("guess", 2.0), ("guess", 4.0), (GPU, 2.0)])
def test_one_run_corrects_the_profile_of_a_slower_gpu(gpu: str, slower: float, tmp_path: Path) -> None:
    """A guessed datasheet, and a known GPU, such as one that other programs use."""
    add_gpu("guess", like=GPU, memory_gb=141, hbm_tb_s=4.8, bf16_tflops=989, profiles=tmp_path)
    profiled = resolve(MODEL, Pool(gpu=gpu, tensor_parallel_size=RANKS), profiles=tmp_path)
    planted = dict.fromkeys(TIME_CLASSES, math.log(slower))
    slow = profiled.adjusted_by(NO_ADJUSTMENT.shift_means(planted))
    runs = [result_file(tmp_path / f"{n}.json", slow, n) for n in (16, 2, 64)]
    answer = learnt(runs[:1], tmp_path, gpu=gpu, profiles=tmp_path)
    assert [text for text in answer.contradictions if "counts as a guess" not in text] == []
    assert (answer.guess is None) == profiled.profile.is_guess

    def metrics(name: str) -> list[dict[str, MetricRow]]:
        found = compare(runs, gpu=name, tensor_parallel_size=RANKS, profiles=tmp_path)
        return [{row.name: row for row in run.metrics} for run in found.runs]

    assert not any(run["mean_tpot_ms"].inside for run in metrics(gpu))
    same, *others = metrics(f"{gpu}@mine")
    for name, scatter in REPEATED.items():
        row = same[f"mean_{name}_ms"]
        assert row.predicted == pytest.approx(row.measured, rel=scatter)
        assert all(other[f"mean_{name}_ms"].inside for other in others)


def test_data_that_contradict_the_physics_are_named_and_hardly_move_anything(tmp_path: Path) -> None:
    good = result_file(tmp_path / "good.json", server(), 16)
    odd = json.loads(result_file(tmp_path / "odd.json", server(), 64).read_text())
    odd |= {name: 4 * value for name, value in odd.items() if name.endswith("_tpot_ms")}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    answer = learnt([good, tmp_path / "odd.json"], tmp_path)
    named = " ".join(answer.contradictions)
    assert "mean TPOT, ms of odd.json" in named
    assert "good.json" not in named
    assert "Check for another launch setting" in named
    assert abs(adjustment(tmp_path).mean("memory")) < 0.1  # ln 4 is 1.4


@pytest.mark.parametrize("faster", [("memory",), ("compute",), ("memory", "compute")])
@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_predictions_follow_a_server_faster_than_its_datasheet(
    faster: tuple[str, ...], factor: float, tmp_path: Path
) -> None:
    add_gpu("guess", like=GPU, memory_gb=141, hbm_tb_s=4.8, bf16_tflops=989, profiles=tmp_path)
    asked: dict[str, Any] = {"tensor_parallel_size": RANKS, "profiles": tmp_path}
    profiled = resolve(MODEL, Pool(gpu="guess", tensor_parallel_size=RANKS), profiles=tmp_path)
    fast = profiled.adjusted_by(NO_ADJUSTMENT.shift_means(dict.fromkeys(faster, -math.log(factor))))
    runs = [result_file(tmp_path / f"{n}.json", fast, n) for n in (2, 16, 64)]
    answer = learnt(runs, tmp_path, gpu="guess", profiles=tmp_path)
    above = (
        "memory" in faster or factor > 1.3
    )  # products reach 71 % of the FLOP/s in the profile, 92 % if 1.3 times
    notes = [note.partition(" allows")[0] for note in answer.contradictions]
    assert notes == ["the measured server is faster than the datasheet of guess"] * above
    for run in compare(runs, gpu="guess@mine", **asked).runs:
        rows = {row.name: row for row in run.metrics}
        for name in ("mean_ttft_ms", "mean_tpot_ms"):
            assert rows[name].predicted == pytest.approx(rows[name].measured, rel=0.03)
    load: dict[str, Any] = {"input_len": 1000, "output_len": 100, "concurrency": 16}
    warnings = estimate(MODEL, gpu="guess@mine", **asked, **load).warnings
    assert any("faster than the datasheet of guess@mine" in text for text in warnings) == above


def test_what_was_learnt_is_the_prior_of_the_next(tmp_path: Path) -> None:
    slow = server(**PLANTED)
    first, second = (result_file(tmp_path / f"{n}.json", slow, n) for n in (4, 64))
    learnt([first], tmp_path)
    once = adjustment(tmp_path)
    learnt([second], tmp_path, gpu=f"{GPU}@mine", profiles=tmp_path)
    twice = adjustment(tmp_path)
    learnt([first, second], tmp_path, name="both")
    both = adjustment(tmp_path, "both")
    assert twice.rows == both.rows == 2 * once.rows
    assert np.all(np.diag(twice.covariance_matrix) <= np.diag(once.covariance_matrix) * (1 + 1e-9))
    deviations = np.sqrt(np.diag(both.covariance_matrix))
    # TTFT jumps where a request just misses a step, so that slopes differ with where they are taken
    assert np.all(np.abs(twice.mean_vector - both.mean_vector) < 2 * deviations)


def test_a_log_teaches_its_kv_cache_and_its_decode_steps(tmp_path: Path) -> None:
    planted = server(memory=0.1, kv_overhead=1.5e9)
    tokens = planted.memory.kv_capacity_tokens
    lines = [f"INFO [kv_cache_utils.py:1229] GPU KV cache size: {tokens:,} tokens"]
    for sequences, context in ((8, 4000), (64, 2000)):
        usage = round(100 * sequences * context / tokens, 1)
        seconds = planted.step_model.step_seconds(
            decode_shape(sequences, round(usage / 100 * tokens / sequences))
        )
        lines += 4 * [
            f"INFO [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
            f"{sequences / seconds:.1f} tokens/s, Running: {sequences} reqs, Waiting: 0 reqs, GPU KV cache usage: "
            f"{usage}%, Prefix cache hit rate: 0.0%"
        ]
    (tmp_path / "server.log").write_text("\n".join(lines))
    answer = learnt([tmp_path / "server.log"], tmp_path, model=MODEL)
    found = adjustment(tmp_path)
    assert [figure.name for figure in answer.figures] == [
        "decode step of 8 sequences (s)",
        "decode step of 64 sequences (s)",
        "KV tokens",
    ]
    assert found.mean("kv_overhead") == pytest.approx(1.5e9, rel=0.2)
    assert 0.03 < found.mean("memory") < 0.14


def test_what_the_deployment_lacks_is_asked_for_in_one_line(tmp_path: Path) -> None:
    run = result_file(tmp_path / "r.json", server(), 4)
    with pytest.raises(InvalidInput, match="no GPU: result files do not name it"):
        calibrate([run], out=tmp_path)
    bare = json.loads(run.read_text())
    del bare["model_id"]
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    with pytest.raises(InvalidInput, match="give --model"):
        calibrate([tmp_path / "bare.json"], gpu=GPU, out=tmp_path)
    with pytest.raises(InvalidInput, match="letters, digits"):
        calibrate([run], gpu=GPU, name="../x", out=tmp_path)
    with pytest.raises(InvalidInput, match="no result to calibrate on"):
        calibrate([])
    with pytest.raises(InvalidInput, match="'num_prompts'"):
        calibrate([run], gpu=GPU, num_prompts=3, out=tmp_path)
    empty = {"elapsed_time": 1.0, "num_requests": 0, "requests_per_second": 0.0}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    described: dict[str, Any] = {"gpu": GPU, "tensor_parallel_size": RANKS, "model": MODEL}
    with pytest.raises(MalformedFile, match="contains no measurement"):
        calibrate([tmp_path / "empty.json"], **described, input_len=10, output_len=10, out=tmp_path)


def test_the_answer_is_a_document_and_lines(tmp_path: Path) -> None:
    answer = learnt([result_file(tmp_path / "r.json", server(memory=0.1), 16)], tmp_path)
    document = json.loads(json.dumps(answer.to_dict()))
    assert document["schema"] == "capacity/calibrated-runs/v1"
    assert len(document["parameters"]) == len(NAMES)
    text = "\n".join(answer.lines())
    assert "kernels bound by memory" in text
    assert f"--gpu {answer.profile}" in text


def test_intervals_narrow_where_runs_were_made_and_for_others_only_by_what_they_share(tmp_path: Path) -> None:
    learnt([result_file(tmp_path / f"{n}.json", server(), n) for n in (4, 16, 64)], tmp_path)
    load: dict[str, Any] = {
        "input_len": 1000,
        "output_len": 200,
        "concurrency": 16,
        "random_range_ratio": 0.3,
    }
    load |= {"tensor_parallel_size": RANKS, "profiles": tmp_path, "client_latency_s": 0.005}

    def width(model: str, gpu: str, metric: str) -> float:
        found = getattr(estimate(model, gpu=gpu, **load), metric)
        return float(np.log(found.high / found.low))

    for metric in ("ttft_s", "tpot_s"):
        own, other = (
            width(model, f"{GPU}@mine", metric) / width(model, GPU, metric) for model in (MODEL, "qwen3-32b")
        )
        assert own < 0.9, metric
        assert own < other < 1.0 + 1e-9, metric


def width(quantity: Any) -> float:
    return float(np.log(quantity.high / quantity.low))


def test_the_measured_load_is_predicted_within_its_scatter_and_others_as_before(tmp_path: Path) -> None:
    """A server that is 9 % slower at 16 requests in flight than any constant says: one run tells that, three tell it
    better, and a load at four times the concurrency keeps its interval."""
    run = result_file(tmp_path / "16.json", server(**PLANTED), 16)
    raw = json.loads(run.read_text())
    again = [tmp_path / f"again-{n}.json" for n in range(3)]
    for path, scatter in zip(again, (1.0, 1.01, 0.99), strict=True):
        slower = {name: 1.09 * scatter * raw[name] for name in raw if name.endswith(("_tpot_ms", "_itl_ms"))}
        path.write_text(json.dumps(raw | slower))
    learnt(again[:1], tmp_path, name="one")
    learnt(again, tmp_path, name="three")
    lengths = json.loads(run.read_text())
    load = {
        "input_len": round(lengths["total_input_tokens"] / lengths["completed"]),
        "output_len": round(lengths["total_output_tokens"] / lengths["completed"]),
        "tensor_parallel_size": RANKS,
        "profiles": tmp_path,
    }
    same, far = (
        {name: estimate(MODEL, gpu=GPU + name, concurrency=at, **load) for name in ("", "@one", "@three")}
        for at in (16, 64)
    )
    tpot = {name: each.tpot_s for name, each in same.items()}
    assert width(tpot["@three"]) < 0.75 * width(tpot["@one"])
    assert width(tpot["@one"]) < 0.5 * width(tpot[""])
    write_profile(make_variant(load_profile(GPU), "truth", NO_ADJUSTMENT.shift_means(PLANTED)), tmp_path)
    true_s = 1.09 * estimate(MODEL, gpu=f"{GPU}@truth", concurrency=16, **load).tpot_s.value
    assert tpot["@one"].value == pytest.approx(true_s, rel=0.02)
    assert tpot["@one"].low < true_s < tpot["@one"].high
    assert width(same["@one"].ttft_s) < 0.6 * width(same[""].ttft_s)
    assert width(far["@one"].tpot_s) > 2 * width(tpot["@one"])
    other = estimate(MODEL, gpu=f"{GPU}@one", concurrency=16, max_num_seqs=64, **load)  # was not measured
    assert width(other.tpot_s) > 2 * width(tpot["@one"])


def test_existing_variant_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    run = result_file(tmp_path / "16.json", server(), 16)
    learnt([run], tmp_path)
    before = adjustment(tmp_path)
    with pytest.raises(InvalidInput, match=r"@mine.toml exists: add --overwrite .* --name") as refused:
        learnt([run], tmp_path)
    assert "\n" not in str(refused.value)
    assert adjustment(tmp_path) == before
    learnt([run], tmp_path, overwrite=True)
    learnt([run], tmp_path, name="other")
