"""Synthetic workloads: independent requests, requests with shared system prompts, and conversations."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.workload.arrivals import ArrivalProcess, SteadyArrivals
from capacity.workload.columns import FloatArray, IntArray, token_column
from capacity.workload.content import PromptContent
from capacity.workload.lengths import FixedLengths, Lengths, UniformLengths, rank_correlated
from capacity.workload.randomness import random_stream
from capacity.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """`count` system prompts of `tokens` tokens; each request begins with one of them.

    System prompt k has a probability proportional to k^-zipf; with `zipf` 0, all have the same probability.
    """

    tokens: int
    count: int = 1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        token_column("shared prefix length", [self.tokens])
        if self.count < 1:
            raise InvalidInput(f"the number of shared prefixes must be at least 1, not {self.count}")
        if not 0 <= self.zipf < math.inf:
            raise InvalidInput(f"the Zipf exponent must be finite and at least 0, not {self.zipf}")

    def pick(self, count: int, rng: np.random.Generator) -> IntArray:
        """Return the index of the system prompt of each of `count` requests."""
        weights = np.arange(1, self.count + 1) ** -self.zipf
        return rng.choice(self.count, size=count, p=weights / weights.sum())


def synthetic(
    *,
    num_requests: int,
    arrivals: ArrivalProcess,
    prompt: Lengths,
    output: Lengths,
    rank_correlation: float = 0.0,
    shared_prefixes: SharedPrefixes | None = None,
    concurrency: int | None = None,
    seed: int = 0,
    name: str = "synthetic",
) -> Workload:
    """Return independent requests. The tokens of a shared prefix are added to the drawn prompt length, as in vLLM.

    Arrivals, lengths and prefixes have separate random streams, so they change independently. Raises InvalidInput.
    """
    check_count("requests", num_requests)
    prompt_tokens, output_tokens = draw_lengths(prompt, output, num_requests, rank_correlation, seed)
    content = None
    if shared_prefixes is not None:
        picked = shared_prefixes.pick(num_requests, random_stream(seed, "sessions"))
        content = add_prefix(picked, shared_prefixes.tokens, prompt_tokens, shared_prefixes.count)
        prompt_tokens = prompt_tokens + shared_prefixes.tokens
    return Workload(
        arrival_s=arrivals.times_s(num_requests, random_stream(seed, "arrivals")),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        content=content,
        concurrency=concurrency,
        name=name,
    )


def draw_lengths(
    prompt: Lengths, output: Lengths, count: int, rank_correlation: float, seed: int
) -> tuple[IntArray, IntArray]:
    """Return prompt and output tokens of `count` requests, with the requested rank correlation."""
    rng = random_stream(seed, "lengths")
    return rank_correlated(
        prompt.draw(count, rng),
        output.draw(count, rng),
        rank_correlation=rank_correlation,
        rng=random_stream(seed, "correlation"),
    )


def random_requests(
    *,
    num_requests: int,
    input_len: int,
    output_len: int,
    request_rate_per_s: float = math.inf,
    burstiness: float = 1.0,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    concurrency: int | None = None,
    seed: int = 0,
) -> Workload:
    """Return the requests of `vllm bench serve --dataset-name random` with these options. Raises InvalidInput."""
    if prefix_len < 0:
        raise InvalidInput(f"the prefix length must be at least 0 tokens, not {prefix_len}")
    return synthetic(
        num_requests=num_requests,
        arrivals=SteadyArrivals(request_rate_per_s, burstiness),
        prompt=_lengths_around(input_len, range_ratio),
        output=_lengths_around(output_len, range_ratio),
        shared_prefixes=SharedPrefixes(prefix_len) if prefix_len else None,
        concurrency=concurrency,
        seed=seed,
        name="random",
    )


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """Seconds from a response to the next request, gamma-distributed with mean `mean_s`; `cv` 1 is exponential."""

    mean_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.mean_s < math.inf and 0 <= self.cv < math.inf):
            raise InvalidInput(
                f"think time needs a finite mean and cv of at least 0, not {self.mean_s} s and {self.cv}"
            )

    def draw_s(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Return `count` independent think times."""
        if self.mean_s == 0 or self.cv == 0:
            return np.full(count, self.mean_s)
        shape = 1 / (self.cv * self.cv)
        return rng.gamma(shape, self.mean_s / shape, count)


def conversations(
    *,
    num_sessions: int,
    arrivals: ArrivalProcess,
    turns: Lengths,
    user_tokens: Lengths,
    output: Lengths,
    think_time: ThinkTime,
    system_prompt_tokens: int = 0,
    seed: int = 0,
    name: str = "conversations",
) -> Workload:
    """Return multi-turn sessions; each prompt has the system prompt, all earlier turns and the new user message.

    `arrivals` are the start times of sessions. Turn k + 1 is sent a think time after turn k completes. All sessions
    have the same system prompt. Raises InvalidInput.
    """
    check_count("sessions", num_sessions)
    if system_prompt_tokens < 0:
        raise InvalidInput(f"the system prompt must have at least 0 tokens, not {system_prompt_tokens}")
    starts_s = arrivals.times_s(num_sessions, random_stream(seed, "arrivals"))
    turns_of = turns.draw(num_sessions, random_stream(seed, "sessions"))
    requests = int(turns_of.sum())
    lengths_rng = random_stream(seed, "lengths")
    question_tokens = user_tokens.draw(requests, lengths_rng)
    answer_tokens = output.draw(requests, lengths_rng)
    first = np.concatenate(([0], np.cumsum(turns_of)[:-1]))
    opens = np.zeros(requests, dtype=bool)
    opens[first] = True
    think_s = np.where(opens, 0.0, think_time.draw_s(requests, random_stream(seed, "thinking")))
    session = np.repeat(np.arange(num_sessions), turns_of)
    return Workload.sort_arrivals(
        arrival_s=np.repeat(starts_s, turns_of) + _running_sums(think_s, first, turns_of),
        prompt_tokens=system_prompt_tokens
        + _running_sums(question_tokens + answer_tokens, first, turns_of)
        - answer_tokens,
        output_tokens=answer_tokens,
        content=_conversation_content(question_tokens, answer_tokens, first, turns_of, system_prompt_tokens),
        session=session,
        after_request=np.where(opens, -1, np.arange(requests) - 1),
        think_s=think_s,
        name=name,
        remark=False,
    )


def _running_sums(values: npt.NDArray[Any], first: IntArray, counts: IntArray) -> npt.NDArray[Any]:
    """Return the cumulative sum of the values within each session, including the value of the turn itself."""
    sums: npt.NDArray[Any] = np.cumsum(values)
    running: npt.NDArray[Any] = sums - np.repeat(sums[first] - values[first], counts)
    return running


def add_prefix(picked: IntArray, prefix_tokens: int, own_tokens: IntArray, prefixes: int) -> PromptContent:
    """Return prompts that each begin with one of `prefixes` shared texts and continue with their own text.

    `picked`: index of the shared text of each request.
    """
    requests = len(picked)
    ids = np.column_stack((picked, prefixes + np.arange(requests)))
    tokens = np.column_stack((np.full(requests, prefix_tokens), own_tokens))
    return PromptContent(
        offsets=2 * np.arange(requests + 1),
        segment_ids=ids.ravel(),
        segment_tokens=tokens.ravel(),
        answer_ids=prefixes + requests + np.arange(requests),
    )


def _conversation_content(
    question_tokens: IntArray,
    answer_tokens: IntArray,
    first: IntArray,
    turns_of: IntArray,
    system_prompt_tokens: int,
) -> PromptContent:
    """Return the content of conversations.

    Text 0 is the system prompt. Text 2r + 1 is the user message of request r, and text 2r + 2 its response.
    """
    prompts: list[list[tuple[int, int]]] = []
    opening = [(0, system_prompt_tokens)] if system_prompt_tokens else []
    questions, answers = question_tokens.tolist(), answer_tokens.tolist()
    for begin, turns in zip(first.tolist(), turns_of.tolist()):
        history = list(opening)
        for request in range(begin, begin + turns):
            history.append((2 * request + 1, questions[request]))
            prompts.append(list(history))
            history.append((2 * request + 2, answers[request]))
    return PromptContent.from_segments(prompts, answer_ids=2 * np.arange(len(question_tokens)) + 2)


def _lengths_around(tokens: int, range_ratio: float) -> Lengths:
    return UniformLengths(tokens, range_ratio) if range_ratio else FixedLengths(tokens)


def check_count(what: str, count: int) -> None:
    """Raise InvalidInput unless `count` is a valid number of `what`, such as "requests"."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise InvalidInput(f"the number of {what} must be a whole number of at least 1, not {count!r}")
    if count > 20_000_000:
        raise InvalidInput(f"the number of {what} must be at most 20,000,000, not {count:,}")
