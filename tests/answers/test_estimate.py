"""`estimate`: what it is made of, and from what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from spec_counts import count_specs

import capacity
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic
from capacity.planning.sizing import sized_estimate as module
from capacity.pool.resolve import resolve
from capacity.step import decode_shape

LOAD = {"input_len": 512, "output_len": 64, "batch_size": 4}
WRITTEN = ("Pool", "Traffic", "Service", "Cost", "DeploymentFile")


def test_breakdowns_add_up_to_their_steps() -> None:
    answer = capacity.estimate("llama-3.1-8b", gpu="h100", input_len=512, output_len=64, batch_size=4)
    assert answer.tpot_s is not None
    assert sum(op.seconds for op in answer.breakdown.decode) == pytest.approx(answer.tpot_s.value)
    steps = resolve("llama-3.1-8b", Pool(gpu="h100")).step_model
    assert answer.tpot_s.value == pytest.approx(steps.step_seconds(decode_shape(4, 512 + 32)))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of spec was validated, and keywords were split."""
    counts, split = count_specs(monkeypatch), module.split

    def counted_split(*arguments: object) -> object:
        counts["split"] += 1
        return split(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "split", counted_split)
    return counts


def test_keywords_are_split_once_and_each_spec_is_made_once(made: Counter[str]) -> None:
    capacity.estimate("llama-3.1-8b", gpu="h100", **LOAD)
    assert [made[name] for name in (*WRITTEN, "split")] == [1, 1, 1, 1, 0, 1]


def test_the_command_line_hands_on_what_it_made(
    made: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from capacity.cli.main import main

    command = "capacity estimate llama-3.1-8b --gpu h100 --isl 512 --osl 64 --batch-size 4"
    for arguments, times in (
        ([], [1, 1, 1, 1, 1, 1]),
        (["--write-deployment", str(tmp_path / "d.toml")], [1, 1, 1, 1, 1, 1]),
    ):
        made.clear()
        monkeypatch.setattr("sys.argv", [*command.split(), *arguments])
        with pytest.raises(SystemExit):
            main()
        assert [made[name] for name in (*WRITTEN, "split")] == times
    made.clear()
    monkeypatch.setattr("sys.argv", ["capacity", "estimate", "--deployment", str(tmp_path / "d.toml")])
    with pytest.raises(SystemExit):
        main()
    assert made["Pool"] == made["Traffic"] == 0  # the file's own


def test_a_deployment_is_asked_as_its_keywords_are() -> None:
    pool, traffic, cost = Pool(gpu="h100"), Traffic(**LOAD, turns=2), Cost(price="2")
    deployment = DeploymentFile(
        schema="capacity/deployment/v1", model="llama-3.1-8b", pools=(pool,), traffic=traffic, cost=cost
    )
    assert capacity.estimate(deployment) == capacity.estimate("llama-3.1-8b", gpu="h100", price="2", **LOAD)
    with pytest.raises(InvalidInput, match="'gpu' cannot be combined with a deployment file"):
        capacity.estimate(deployment, gpu="h200")
    with pytest.raises(InvalidInput, match="2 pools"):
        capacity.estimate(deployment.model_copy(update={"pools": (pool, pool)}))


def test_keywords_that_only_a_simulation_answers_to_are_refused() -> None:
    with pytest.raises(InvalidInput, match="estimate does not take 'turns'"):
        capacity.estimate("llama-3.1-8b", gpu="h100", turns=2, **LOAD)


def test_a_batch_that_does_not_fit_names_the_one_that_does() -> None:
    options = {"gpu": "h100", "max_model_len": 8192, "input_len": 4000, "output_len": 200}
    with pytest.raises(DoesNotFit, match="or --kv-cache-dtype fp8 or smaller weights") as refused:
        capacity.estimate("qwen3-32b", batch_size=64, **options)
    most = int(str(refused.value).rpartition("--batch-size ")[2])
    assert capacity.estimate("qwen3-32b", batch_size=most, **options).batch_size == most
    with pytest.raises(DoesNotFit):
        capacity.estimate("qwen3-32b", batch_size=most + 1, **options)
    with pytest.raises(DoesNotFit) as narrow:
        capacity.estimate("qwen3-32b", batch_size=500, quantization="awq", kv_cache_dtype="fp8", **options)
    assert "--kv-cache-dtype" not in str(narrow.value)
    assert "--quantization" not in str(narrow.value)
