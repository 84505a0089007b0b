"""The best deployment of a small space, by simulating every one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quick_plans import PRICES

from capacity.answers.engine_setup import setup_of
from capacity.base.errors import CapacityError
from capacity.deployment import Cost, Pool, Traffic
from capacity.model import load_model
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest
from capacity.planning.evaluation.resampling import resample_traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.candidate_family import CandidateRecord
from capacity.planning.search.candidate_generator import CandidateGenerator, with_context
from capacity.planning.search.plan_request import Market, parsed_slos
from capacity.planning.space import Candidate, Search, pairs, pools


def brute_force(
    model: str, slo: str, space: dict[str, Any], traffic: dict[str, Any]
) -> tuple[float, int, set[Candidate]]:
    """The least objective over every engine, pair and number of replicas, all simulated; how many points there were;
    and all that reach that objective. Asserts that the survey leaves each deployment that meets the SLO open."""
    search = Search(**space, replications=traffic["replications"])
    fields = {name: value for name, value in traffic.items() if name != "replications"}
    workloads = resample_traffic(Traffic(**fields), None, search.replications)
    context = EvaluationContext(
        model=load_model(model), workloads=workloads, goal=Goal(slos=parsed_slos(slo))
    )
    market = Market.look_up(search, Cost(price=PRICES), [])
    generator = CandidateGenerator(
        context=context, search=search, load=Load.average(workloads), market=market
    )
    found = look_at_everything(generator)
    options = {option.candidate_at(0): option for option in found.options}
    best, points, reached = math.inf, 0, set()
    for candidate in every_candidate(context, search, market, generator):
        points += 1
        if not context.run(EvaluationRequest(candidate=candidate, confidence=search.confidence)).met:
            continue
        option = options.get(replace(candidate, replicas=0))
        assert option is not None, f"the survey excluded {candidate}, which meets the SLO"
        assert option.least <= candidate.replicas <= option.most, f"a bound excluded {candidate}"
        value = option.objective(candidate.replicas)
        reached = {candidate} if value < best else reached | {candidate} if value == best else reached
        best = min(best, value)
    assert points == found.points, f"{points} deployments, {found.points} counted"
    return best, points, reached


def look_at_everything(generator: CandidateGenerator) -> CandidateRecord:
    """All of the space, resolved and bounded."""
    for prospect in list(generator.unresolved_candidates()):
        prospect.enter()
    return generator.survey


def every_candidate(
    context: EvaluationContext, search: Search, market: Market, generator: CandidateGenerator
) -> Iterator[Candidate]:
    for gpu in market.quotes:
        for asked in pools(search, gpu, context.model):
            pool = _runs(generator, asked)
            if "aggregated" not in search.serving or pool is None:
                continue
            most = search.max_gpus // pool.num_gpus
            if most:
                yield Candidate(pool=pool, replicas=1)
            for replicas, router in itertools.product(range(2, most + 1), generator.routers(most)):
                yield Candidate(pool=pool, replicas=replicas, router=router)
        for sides in pairs(search, gpu, context.model):
            prefill, decode = (_runs(generator, side) for side in sides)
            if "disaggregated" not in search.serving or prefill is None or decode is None:
                continue
            for count in range(1, search.max_gpus // prefill.num_gpus + 1):
                left = search.max_gpus - count * prefill.num_gpus
                for replicas in range(1, left // decode.num_gpus + 1):
                    yield Candidate(pool=decode, replicas=replicas, prefill=prefill, prefill_replicas=count)


def _runs(generator: CandidateGenerator, asked: Pool) -> Pool | None:
    """The pool with a context that fits; None where it holds not one request, or cannot run."""
    try:
        pool, resolved = with_context(generator.context, asked, generator.load)
        if not resolved.memory.fits or not setup_of(resolved):
            return None
        return pool if resolved.concurrent_requests(generator.load.longest_request_tokens) else None
    except CapacityError:
        return None
