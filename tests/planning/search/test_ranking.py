"""The ranking: the best of each family, or which part of the SLO is missed and by how much."""

from __future__ import annotations

from quick_plans import quick


def test_every_gpu_and_format_that_can_do_it_is_ranked_by_its_verified_best() -> None:
    answer = quick(gpus="a100,h100", quantizations=(None, "int4"), max_num_batched_tokens=(None, 4096, 2048))
    leaders = {
        (r.candidate.pool.gpu, r.candidate.pool.quantization): r for r in answer.ranked if r.best_of_its_kind
    }
    assert len(leaders) == 4
    assert all(leader.trial.seen == "all" for leader in leaders.values())
    assert answer.ranked[0].best_of_its_kind


def test_an_infeasible_slo_says_which_part_and_by_how_much() -> None:
    answer = quick(slo="ttft:p95:1ms tpot:p95:30ms")
    assert not answer.ranked
    (miss,) = answer.misses
    assert miss.slo == "ttft:p95:1ms"
    assert miss.factor > 2
    assert "h100" in miss.candidate
    simulated = quick(slo="ttft:p95:30ms tpot:p95:30ms", input_len=300, request_rate=100.0, max_gpus=1)
    if not simulated.ranked:
        assert all(miss.factor > 1 for miss in simulated.misses)
        assert any("ttft" in miss.slo or miss.slo == "capacity" for miss in simulated.misses)
