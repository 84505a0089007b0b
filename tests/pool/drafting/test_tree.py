"""Trees of drafts: by hand, against every tree there is, against draws of the target's path, and in the simulator."""

from __future__ import annotations

import math
import random
from itertools import combinations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from resolved_pools import pool
from step_models import FunctionStepTimes

import capacity
from capacity.base.errors import InvalidInput
from capacity.pool.drafting import Speculation, Speculator, expected_tokens, find_speculator
from capacity.pool.drafting.tree import candidate_rate, depth_reach, first_rate_of_length, tree_rates
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers.sequence import DrawnSpeculation, Sequence
from capacity.step import StepShape
from capacity.techniques.speculate import simulate_speculation
from capacity.workload import Workload, random_requests

RATE = st.floats(0.05, 0.95)
Node = tuple[int, ...]  # the ranks from the root


def tree(**fields: object) -> Speculator:
    return Speculator(name="eagle", kind="layer", draft_tokens=4, tree_tokens=16, fused_inputs=2, **fields)  # type: ignore[arg-type]


def tokens(first: tuple[float, ...], nodes: int) -> float:
    return 1 + sum(depth_reach(first, nodes))


def probability(node: Node, first: tuple[float, ...]) -> float:
    return math.prod(candidate_rate(first[depth], rank) for depth, rank in enumerate(node))


def test_three_nodes_by_hand() -> None:
    """a = 0.6: the second candidate is right with 0.4·(1 - 1/√2) = 0.117, so root, its child (0.36) and the sibling."""
    assert candidate_rate(0.6, 2) == pytest.approx(0.4 * (1 - math.sqrt(0.5)))
    assert tokens((0.6, 0.6), 1) == pytest.approx(1.6)
    assert tokens((0.6, 0.6), 2) == pytest.approx(1.96)
    assert tokens((0.6, 0.6), 3) == pytest.approx(1.96 + 0.1171573)
    assert tree_rates((0.6, 0.6), 3) == pytest.approx((0.7171573, 0.36 / 0.7171573))


def test_candidates_share_what_the_first_leaves_over() -> None:
    assert sum(candidate_rate(0.3, rank) for rank in range(1, 20_001)) == pytest.approx(
        1 - 0.7 / math.sqrt(20_000)
    )
    assert candidate_rate(1.0, 2) == 0


@given(RATE, st.integers(1, 8))
def test_without_siblings_a_tree_is_the_textbooks_chain(first: float, depth: int) -> None:
    """Further candidates that are never right leave (1 - a^(k+1))/(1 - a)."""
    reach = depth_reach((first,) * depth, depth, exponent=1e-12)
    assert 1 + sum(reach) == pytest.approx(expected_tokens(first, depth), rel=1e-6)


@settings(max_examples=examples(25))
@given(st.tuples(RATE, RATE, RATE), st.integers(1, 5))
def test_no_other_tree_of_that_size_yields_more(first: tuple[float, ...], nodes: int) -> None:
    """Every tree of up to 5 of the 39 nodes of rank up to 3 and depth up to 3, a parent before its child."""
    every: list[Node] = [()]
    for _ in first:
        every += [(*node, rank) for node in every if len(node) == max(map(len, every)) for rank in (1, 2, 3)]
    likely = sorted((n for n in every if n), key=lambda n: -probability(n, first))[:12]
    whole = [c for c in combinations(likely, nodes) if all(n[:-1] in (*c, ()) for n in c)]
    best = max(sum(probability(n, first) for n in c) for c in whole)
    assert tokens(first, nodes) >= 1 + best - 1e-9


def test_drawn_paths_of_the_target_are_accepted_as_often() -> None:
    """100,000 paths, a rank drawn at each depth, walked down an explicit tree of 12 nodes: within 4 standard errors."""
    first, rng = (0.7, 0.5, 0.6), random.Random(5)
    nodes: set[Node] = set()
    while len(nodes) < 12:  # the most probable path whose parent is in and whose elder sibling is
        known = [*nodes, ()]
        grown = [(*n, 1 + sum(m[:-1] == n for m in nodes)) for n in known if len(n) < 3]
        nodes.add(max(grown, key=lambda n: probability(n, first)))
    lengths = []
    for _ in range(100_000):
        path: Node = ()
        for rate in first:
            draw, rank = rng.random(), 1
            while rank < 40 and (draw := draw - candidate_rate(rate, rank)) > 0:
                rank += 1
            if (*path, rank) not in nodes:
                break
            path = (*path, rank)
        lengths.append(1 + len(path))
    error = float(np.std(lengths)) / math.sqrt(len(lengths))
    assert abs(float(np.mean(lengths)) - tokens(first, 12)) < 4 * error


@given(RATE, st.integers(1, 8), st.integers(1, 64))
def test_more_nodes_yield_more_up_to_the_depth(first: float, depth: int, nodes: int) -> None:
    fewer, more = tokens((first,) * depth, nodes), tokens((first,) * depth, 2 * nodes)
    assert 1 <= fewer <= more <= depth + 1 + 1e-9
    if nodes >= depth:
        assert fewer >= expected_tokens(first, depth) - 1e-9


@settings(max_examples=examples(30))
@given(RATE, st.integers(1, 6), st.integers(1, 40))
def test_the_first_rate_of_a_length_is_the_inverse(first: float, depth: int, nodes: int) -> None:
    length = tokens((first,) * depth, nodes)
    found = first_rate_of_length(length, depth, nodes)
    assert tokens((found,) * depth, nodes) == pytest.approx(length, abs=1e-6)


@pytest.mark.parametrize(
    ("chain", "published"),
    [(3.20, 3.94), (3.23, 3.98), (2.97, 3.68), (3.00, 3.62), (3.18, 3.90), (3.12, 3.81)],
)
def test_what_a_tree_adds_to_eagles_chains(chain: float, published: float) -> None:
    """EAGLE's ablation (five Vicuna and Llama-2 models and 70B; a chain, then its tree of 25): within 3 %."""
    first = first_rate_of_length(chain, 5, 5, exponent=1e-12)
    assert tokens((first,) * 5, 25) == pytest.approx(published, rel=0.03)


def test_a_speculators_tree_and_its_chain() -> None:
    """`--acceptance 0.5` is of the first candidate: a chain of 2 yields 1.75, a tree more; a length is the tree's."""
    eagle = find_speculator("eagle-tree")
    assert eagle.with_acceptance("0.5").as_chain().tokens_per_round(2) == 1.75
    assert eagle.with_acceptance("0.5").tokens_per_round(2) > 2
    assert eagle.with_acceptance("length:2.5").tokens_per_round(5) == pytest.approx(2.5)
    assert eagle.tokens_per_round(5) == pytest.approx(3.58)
    assert 2.7 < eagle.as_chain().tokens_per_round(5) < 3.3
    assert find_speculator("ngram").as_chain() is find_speculator("ngram")
    assert tree(acceptance_rate=0.5).tree_sizes(4) == (4, 8, 16)
    assert find_speculator("ngram").tree_sizes(4) == (4,)


def test_a_bigger_tree_pays_at_batch_one_and_a_chain_at_many() -> None:
    speculation = Speculation(pool("llama-3.1-8b", "h100"), tree(acceptance_rate=0.6))
    alone, crowded = speculation.best_round(1, 1000), speculation.best_round(256, 1000)
    assert alone.verified_tokens > alone.draft_tokens
    assert crowded.verified_tokens < alone.verified_tokens
    whole, chain = speculation.round_of(256, 1000, 4, 16), speculation.round_of(256, 1000, 4, 4)
    assert whole.tokens_per_round > chain.tokens_per_round
    assert whole.verify_s > chain.verify_s
    assert whole.speedup < chain.speedup
    with pytest.raises(InvalidInput, match="tree of 3"):
        speculation.round_of(1, 1000, 4, 3)


# in the simulator


def test_drawn_rounds_have_the_trees_length() -> None:
    rates = tree_rates((0.6,) * 4, 16)
    drafted = DrawnSpeculation(rates, lookahead_slots=16, seed=3, k=16)
    request = Sequence(0, id=0, arrival=0, prompt_tokens=1, max_known=9, priority=0, table=None)
    lengths = [1 + drafted.count_accepted(request, 16) for _ in range(40_000)]
    error = float(np.std(lengths)) / math.sqrt(len(lengths))
    assert max(lengths) == 5
    assert abs(float(np.mean(lengths)) - tokens((0.6,) * 4, 16)) < 4 * error


def test_every_node_is_a_row_a_slot_and_a_token_of_the_budget() -> None:
    """8 requests with trees of 16: steps of 8 x 17 rows; a budget of 100 tokens lets 5 of them verify at a time."""
    seen: list[StepShape] = []

    def times(shape: StepShape) -> float:
        seen.append(shape)
        return 1e-3

    def rows(budget: int) -> set[int]:
        from capacity.simulator.schedulers import SchedulerLimits

        seen.clear()
        simulate(
            Workload(arrival_s=np.zeros(8), prompt_tokens=np.full(8, 8), output_tokens=np.full(8, 60)),
            EngineSetup(
                step_times=FunctionStepTimes(times),
                num_blocks=1000,
                policy="vllm-v1",
                limits=SchedulerLimits(max_num_batched_tokens=budget),
                speculation=DrawnSpeculation((0.0,) * 4, lookahead_slots=16, k=16),
            ),
        )
        return {shape.num_tokens for shape in seen if shape.decode_sequences and not shape.prefill_tokens}

    assert max(rows(8192)) == 8 * 17
    assert max(rows(100)) == 100


def test_simulation_and_formula_agree_on_a_tree() -> None:
    """Closed loop of 8 with long answers: within 8 %, which is the prefills that the formula leaves out."""
    speculation = Speculation(pool("llama-3.1-8b", "h100"), tree(acceptance_rate=0.6))
    workload = random_requests(
        num_requests=16, input_len=64, output_len=400, request_rate_per_s=math.inf, concurrency=8, seed=0
    )
    run = simulate_speculation(speculation, workload)
    formula = speculation.round_of(8, 64 + 200)
    assert (run.draft_tokens, run.verified_tokens) == (4, 16)
    assert run.speculated.status == "complete"
    assert run.throughput_gain == pytest.approx(formula.speedup, rel=0.08)


def test_a_simulated_tree_says_that_it_is_one() -> None:
    """vLLM drafts chains unless told otherwise: who asks for EAGLE-3's tree reads how many rows it is."""
    load = {"gpu": "h100", "input_len": 64, "output_len": 16, "num_prompts": 4, "request_rate": 4.0}
    tree_run = capacity.simulate("llama-3.1-8b", speculator="eagle3-tree", num_speculative_tokens=4, **load)
    assert any("a tree of 30 tokens and depth 4" in warning for warning in tree_run.warnings)
    for speculator in ("eagle3", None):
        chain_run = capacity.simulate("llama-3.1-8b", speculator=speculator, **load)
        assert not any("tree" in warning for warning in chain_run.warnings)


def test_bad_trees_are_refused_in_one_line() -> None:
    for first, rank in ((1.2, 1), (-0.1, 1), (0.5, 0), (float("nan"), 1)):
        with pytest.raises(InvalidInput):
            candidate_rate(first, rank)
    for nodes in (-1, 5000):
        with pytest.raises(InvalidInput, match="tree of"):
            depth_reach((0.5,), nodes)
    for length in (0.9, 5.1):
        with pytest.raises(InvalidInput, match="accepted length"):
            first_rate_of_length(length, 4, 10)
    assert depth_reach((), 0) == ()
