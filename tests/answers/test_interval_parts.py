"""The parts of an interval: independent, weighed by what the figure hangs on, replaced by what own runs found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from capacity.answers.interval_parts import (
    LAUNCH_SETTINGS,
    MACHINE,
    Z_90,
    Part,
    PredictionContext,
    deviation_of,
    interval_parts,
    kind_of,
    relative_ends,
)
from capacity.hardware.adjustment import NAMES, Adjustment, prior_covariance
from capacity.hardware.spreads import RUN_TO_RUN, MetricSpread, load_spreads
from capacity.step.time_classes import EFFECTS, Effect

DENSE = PredictionContext(
    engine="vllm", engine_label="vllm@0.15", gpu="h100-sxm-80gb", model="llama-3.1-8b", is_moe=False
)
ALL_MEMORY: dict[Effect, float] = {**dict.fromkeys(EFFECTS, 0.0), "memory": 1.0}


def named(parts: tuple[Part, ...]) -> dict[str, float]:
    return {part.name: part.deviation for part in parts}


def test_a_class_of_seconds_counts_by_how_much_hangs_on_it() -> None:
    known = load_spreads()
    full = named(interval_parts("tpot", ALL_MEMORY, DENSE, known))
    half = named(interval_parts("tpot", {**ALL_MEMORY, "memory": 0.5}, DENSE, known))
    assert full["memory"] == pytest.approx(known.classes["memory"])
    assert half["memory"] == pytest.approx(full["memory"] / 2)
    assert set(full) == {"memory", "deployment", "run", MACHINE}


def test_parts_add_in_quadrature_and_come_largest_first() -> None:
    parts = interval_parts("tpot", ALL_MEMORY, replace(DENSE, transferred=True), load_spreads())
    assert deviation_of(parts) == pytest.approx(math.sqrt(sum(part.deviation**2 for part in parts)))
    assert [part.deviation for part in parts] == sorted((part.deviation for part in parts), reverse=True)


def test_ends_are_those_of_left_out_sources_and_a_normals_for_the_rest() -> None:
    kind = MetricSpread(deployment=0.1, run=0.1, low=-1.0, high=2.0, rows=1)
    judged = Part(name="memory", what="", deviation=0.1)
    unsaid = Part(name="--max-num-seqs", what="", deviation=0.2, judged=False)
    assert relative_ends([judged], kind) == (pytest.approx(math.exp(-0.1)), pytest.approx(math.exp(0.2)))
    low, high = relative_ends([judged, unsaid], kind)
    assert low == pytest.approx(math.exp(-math.hypot(0.1, Z_90 * 0.2)))
    assert high == pytest.approx(math.exp(math.hypot(0.2, Z_90 * 0.2)))


def test_only_what_was_not_said_has_a_part() -> None:
    asked = replace(DENSE, engine="tensorrt-llm", unsaid=("max_num_seqs", "engine_version"))
    parts = named(interval_parts("ttft", ALL_MEMORY, asked, load_spreads()))
    assert parts["--max-num-seqs"] == load_spreads().unsaid["tensorrt-llm"]["max_num_seqs"].ttft
    assert "--max-num-batched-tokens" not in parts
    assert "scheduling" in parts  # which no flag says
    assert not any(
        name.startswith("--") for name in named(interval_parts("ttft", ALL_MEMORY, DENSE, load_spreads()))
    )


def test_machine_part_grows_with_the_unknown_settings_and_ends_with_own_runs() -> None:
    known = load_spreads()
    least, most = known.other_machines["dense"], known.beyond_said["dense"]
    for metric in ("ttft", "tpot"):
        low = getattr(least, metric)
        high = max(getattr(most, metric), low)
        found = [
            named(
                interval_parts(metric, ALL_MEMORY, replace(DENSE, unsaid=("max_num_seqs",) * count), known)
            )[MACHINE]
            for count in range(LAUNCH_SETTINGS + 1)
        ]
        assert found == sorted(found)
        assert (found[0], found[-1]) == (pytest.approx(low), pytest.approx(high))
    whole = named(interval_parts("e2e", ALL_MEMORY, replace(DENSE, ttft_share=0.25), known))
    assert whole[MACHINE] == pytest.approx(math.hypot(0.25 * least.ttft, 0.75 * least.tpot))
    learnt = Adjustment(
        means={},
        covariance=(),
        source="a run",
        date="2026-11-23",
        models=(DENSE.model,),
        engines=(DENSE.engine_label,),
    )
    assert MACHINE not in named(interval_parts("tpot", ALL_MEMORY, replace(DENSE, adjustment=learnt), known))


def test_kernels_known_by_hearsay_take_their_own_factor() -> None:
    parts = named(interval_parts("tpot", ALL_MEMORY, replace(DENSE, error_factor=2.0), load_spreads()))
    assert parts["weight kernels"] == pytest.approx(math.log(2) / Z_90)


def test_an_engine_never_seen_has_wider_deployments() -> None:
    known = load_spreads()
    unseen = named(interval_parts("tpot", ALL_MEMORY, replace(DENSE, engine="tgi"), known))
    assert unseen["deployment"] == pytest.approx(known.dense_tpot.deployment * known.unfamiliar)


def test_own_runs_replace_classes_and_what_they_left_open_of_the_deployment() -> None:
    """A tenth of the prior's deviations; half of a deployment's own variance comes anew with another load."""
    covariance = prior_covariance() / 100
    adjustment = Adjustment(
        means={"tpot": 0.03},
        covariance=tuple(tuple(map(float, row)) for row in covariance),
        source="two runs",
        date="2026-11-22",
        rows=6,
        models=(DENSE.model,),
        engines=(DENSE.engine_label,),
    )
    own = replace(DENSE, adjustment=adjustment)
    known = load_spreads()
    parts = named(interval_parts("tpot", ALL_MEMORY, own, known))
    before = named(interval_parts("tpot", ALL_MEMORY, DENSE, known))
    memory, beyond = (math.sqrt(covariance[place, place]) for place in map(NAMES.index, ("memory", "tpot")))
    anew = max(known.classes["memory"] ** 2 - memory**2, 0.0) * RUN_TO_RUN
    kernels = math.sqrt(memory**2 + anew)
    assert memory < kernels < known.classes["memory"]
    assert parts["calibrated steps"] == pytest.approx(math.hypot(kernels, beyond))
    assert parts["deployment"] == pytest.approx(known.dense_tpot.deployment * math.sqrt(RUN_TO_RUN))
    assert parts["run"] == pytest.approx(known.dense_tpot.run)
    stranger = named(interval_parts("tpot", ALL_MEMORY, replace(own, model="qwen3-32b"), known))
    assert stranger["calibrated steps"] == pytest.approx(kernels)
    assert stranger["deployment"] == before["deployment"]
    assert stranger["run"] == before["run"]


def test_the_ends_after_learning_are_those_of_learnt_deployments_alone() -> None:
    """Of another model's runs those before hold, and of a full engine, which nobody learnt from."""
    known = load_spreads()
    adjustment = Adjustment(
        covariance=tuple(map(tuple, (prior_covariance() / 4).tolist())),
        source="two runs",
        date="2026-11-23",
        models=(DENSE.model,),
        engines=(DENSE.engine_label,),
    )
    own = replace(DENSE, adjustment=adjustment)
    kind = kind_of("tpot", own, known)
    assert (kind.low, kind.high) == (known.dense_tpot.learnt_low, known.dense_tpot.learnt_high)
    assert kind_of("tpot", DENSE, known) == kind_of("tpot", replace(own, model="qwen3-32b"), known)
    assert kind_of("tpot", DENSE, known) == known.dense_tpot
    assert kind_of("e2e", replace(own, saturated=True), known) == known.dense_saturated


def test_end_to_end_weighs_both_phases() -> None:
    known = load_spreads()
    seen = known.find_evidence(DENSE.engine, DENSE.gpu, is_moe=False)
    assert seen is not None
    parts = named(interval_parts("e2e", ALL_MEMORY, replace(DENSE, ttft_share=0.25), known))
    expected = math.hypot(0.25 * known.dense_ttft.run * seen.ttft, 0.75 * known.dense_tpot.run * seen.tpot)
    assert parts["run"] == pytest.approx(expected)


def test_interval_parts_ttft_of_an_unmeasured_chip_has_its_own_factor() -> None:
    chip = replace(DENSE, unmeasured={"chip": 1.5}, ttft_unmeasured={"chip": 2.0})
    ttft = named(interval_parts("ttft", ALL_MEMORY, chip, load_spreads()))["chip"]
    tpot = named(interval_parts("tpot", ALL_MEMORY, chip, load_spreads()))["chip"]
    assert ttft / tpot == pytest.approx(math.log(2.0) / math.log(1.5))
