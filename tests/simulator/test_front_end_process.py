"""A front-end process as a queue: closed forms, and what published rows show of it."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator.front_end_process import (
    FrontEndProcess,
    FrontEndProcesses,
    FrontendTimes,
)
from capacity.step import PS_PER_S

# Hugging Face's fast tokenizers, one sequence at a time: 1.1 s for 4 MB, about a million tokens
# (charlesxu.io/parallel-tokenizer, read 2026-11; measured there)
MEASURED_INPUT_TOKEN_S = 1.1e-6
PUBLISHED_OUTPUT_TOKEN_S = 9e-5  # TensorRT-LLM's, as its engine file says
JOBS = st.lists(st.tuples(st.integers(0, 10**9), st.booleans(), st.integers(1, 5000)), max_size=50)


@given(jobs=JOBS)
def test_it_works_whenever_there_is_work_and_on_one_thing_at_a_time(
    jobs: list[tuple[int, bool, int]],
) -> None:
    process = FrontEndProcess(FrontendTimes(input_token_s=1e-6, output_token_s=2e-7))
    free = 0
    for at_ps, comes, tokens in sorted(jobs):
        assert process.free_ps == free
        done = process.take_in(tokens, at_ps) if comes else process.send(at_ps)
        work = tokens * 10**6 if comes else 2 * 10**5
        assert done == max(free, at_ps) + work
        free = done
    assert process.busy_ps == sum(tokens * 10**6 if comes else 2 * 10**5 for _, comes, tokens in jobs)


def test_prompts_of_a_length_at_random_instants_wait_as_in_an_m_d_1_queue() -> None:
    """Mean wait = utilisation x service / 2 (1 - utilisation); 300,000 draws at 0.7 are within 3 %."""
    tokens, service_s, utilisation = 2000, 2000 * MEASURED_INPUT_TOKEN_S, 0.7
    process = FrontEndProcess(FrontendTimes(input_token_s=MEASURED_INPUT_TOKEN_S, output_token_s=0.0))
    gaps_s = np.random.default_rng(1).exponential(service_s / utilisation, 300_000)
    arrivals = np.rint(np.cumsum(gaps_s) * PS_PER_S).astype(np.int64).tolist()
    waits = [process.take_in(tokens, at_ps) - at_ps for at_ps in arrivals]
    wait_s = float(np.mean(waits)) / PS_PER_S - service_s
    assert wait_s == pytest.approx(utilisation * service_s / (2 * (1 - utilisation)), rel=0.03)


def test_a_request_that_comes_waits_behind_tokens_that_go() -> None:
    process = FrontEndProcess(FrontendTimes(input_token_s=1e-6, output_token_s=5e-5))
    for _ in range(512):  # a step of 512 streams
        process.send(10)
    assert process.take_in(1000, 20) == 10 + 512 * 5 * 10**7 + 10**9
    with pytest.raises(AssertionError, match="in time order"):
        process.send(19)


def streamed(step_s: float, clients: int, output_tokens: int, seconds: float) -> tuple[float, float]:
    """Tokens a second and mean time to first token (s) of a closed loop whose engine takes `step_s` a step, whatever
    the batch, behind one process. Clients begin one after another, over the time of an answer, so that their answers
    end at different times."""
    process = FrontEndProcess(FrontendTimes(input_token_s=0.0, output_token_s=PUBLISHED_OUTPUT_TOKEN_S))
    step_ps, end_ps = round(step_s * PS_PER_S), round(seconds * PS_PER_S)
    whole_ps = round(clients * output_tokens * PUBLISHED_OUTPUT_TOKEN_S * PS_PER_S)
    coming = [(client * whole_ps // clients, client) for client in range(clients)]
    heapq.heapify(coming)
    running: list[list[int]] = []  # tokens left, when it was sent, client
    sent, firsts, now_ps = 0, [], 0
    while now_ps < end_ps:
        now_ps += step_ps
        for request in running:
            done_ps = process.send(now_ps)
            if end_ps // 3 < done_ps <= end_ps:
                sent += 1
                if request[0] == output_tokens:
                    firsts.append((done_ps - request[1]) / PS_PER_S)
            request[0] -= 1
            if not request[0]:
                heapq.heappush(coming, (done_ps, request[2]))
        running = [request for request in running if request[0]]
        while coming and coming[0][0] <= now_ps:
            at_ps, client = heapq.heappop(coming)
            running.append([output_tokens, at_ps, client])
    return sent / (seconds * 2 / 3), float(np.mean(firsts))


def test_more_gpus_stream_no_more_tokens_and_first_tokens_wait_behind_longer_answers() -> None:
    """128 clients; steps of 7 ms (2 H100) and 3 ms (8): both above what the process sends, 11,111 tokens/s.

    Published: 8.9 and 9.2 thousand tokens/s on 4 and 8, 1.1 s to the first of 256 tokens, 2.0 s to the first of 512.
    """
    limit = 1 / PUBLISHED_OUTPUT_TOKEN_S
    rates = [streamed(step_s, 128, 256, 40.0)[0] for step_s in (7e-3, 3e-3)]
    assert rates == pytest.approx([limit, limit], rel=0.02)
    firsts = [streamed(3e-3, 128, tokens, 40.0)[1] for tokens in (128, 256, 512)]
    assert firsts[0] < 0.6 * firsts[1] < 0.36 * firsts[2]
    assert streamed(3e-3, 8, 256, 10.0)[1] < 0.01  # 8 clients do not fill it: 2,667 tokens/s


def gone_on(front_end: FrontEndProcesses, arrivals_ps: list[int]) -> list[int]:
    """When each request goes to the engine, asked about as the engine asks."""
    at_ps = [0] * len(arrivals_ps)
    coming: list[tuple[int, int, int]] = [(at, 0, request) for request, at in enumerate(arrivals_ps)]
    heapq.heapify(coming)
    while coming:
        now_ps, stage, request = heapq.heappop(coming)
        next_ps = (
            front_end.engine_arrival_ps(request, now_ps) if stage else front_end.take_in(request, now_ps)
        )
        if stage and next_ps == now_ps:
            at_ps[request] = now_ps
        else:
            heapq.heappush(coming, (next_ps, 1, request))
    return at_ps


def test_of_a_burst_none_but_the_first_goes_on_before_all_are_taken_in() -> None:
    """1,000 at once, 14 ms each: the first turn has one of them, the second all others."""
    front_end = FrontEndProcesses(FrontendTimes(processes=1, request_s=0.014), [1] * 1000)
    assert gone_on(front_end, [0] * 1000) == [14 * 10**9] + [14 * 10**12] * 999
    front_end = FrontEndProcesses(FrontendTimes(processes=2, request_s=0.014), [1] * 1000)
    assert gone_on(front_end, [0] * 1000) == [14 * 10**9] * 2 + [7 * 10**12] * 998


def test_who_comes_during_a_turn_is_of_the_next() -> None:
    """10 ms each: 0 alone until 10; 3 and 9 until 30; 12 and 29 until 50; 61 alone."""
    front_end = FrontEndProcesses(FrontendTimes(processes=1, request_s=0.01), [1] * 6)
    arrivals_ms, gone_ms = [0, 3, 9, 12, 29, 61], [10, 30, 30, 50, 50, 71]
    assert gone_on(front_end, [at * 10**9 for at in arrivals_ms]) == [at * 10**9 for at in gone_ms]


def test_processes_share_the_requests() -> None:
    front_end = FrontEndProcesses(
        FrontendTimes(processes=2, input_token_s=1e-6, output_token_s=1e-6), [7, 5, 1, 1]
    )
    assert [front_end.send(request, 0) for request in range(4)] == [10**6, 10**6, 2 * 10**6, 2 * 10**6]
    assert [front_end.take_in(request, 0) for request in range(2)] == [9 * 10**6, 7 * 10**6]
    with pytest.raises(InvalidInput, match="at least 1 process, not 0"):
        FrontendTimes(processes=0)
