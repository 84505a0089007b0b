"""Traffic of many clients, each with its own rate, bursts and lengths, as in a shared service.

A few clients send most requests and dominate the load. Their bursts do not average out, and their lengths differ from
the overall mean. The split by client, gamma-distributed gaps and exponential outputs follow ServeGen (arXiv 2505.09999,
read 2026-11). The spread of rates and lengths over clients is assumed and can be set.
"""

import math
from dataclasses import dataclass

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.arrivals import TimedRate, unit_gaps
from capacity.workload.columns import MAX_REQUEST_TOKENS, FloatArray, IntArray
from capacity.workload.lengths import Lengths
from capacity.workload.randomness import random_stream
from capacity.workload.synthetic import ThinkTime, add_prefix, check_count, draw_lengths
from capacity.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Clients:
    """`count` clients; client k sends a share of requests proportional to k^-zipf (with 1,000 clients and zipf 1.5, 29
    clients send 88 % of the requests).

    The gaps of a client have squared coefficient of variation 1/burstiness. Its mean prompt and output lengths are the
    overall means times lognormal factors of mean 1 and coefficient of variation `length_cv`.
    """

    count: int
    zipf: float = 1.5
    burstiness: float = 1.0
    length_cv: float = 0.5

    def __post_init__(self) -> None:
        check_count("clients", self.count)
        for name, value in (("Zipf exponent", self.zipf), ("spread of lengths", self.length_cv)):
            if not 0 <= value < math.inf:
                raise InvalidInput(f"the {name} of clients must be finite and at least 0, not {value}")
        if not self.burstiness > 0:
            raise InvalidInput(f"burstiness must be above 0 (1 is Poisson), not {self.burstiness}")

    def draw_request_counts(self, requests: int, rng: np.random.Generator) -> IntArray:
        """Return the number of requests of each client; they add up to `requests`."""
        weights = np.arange(1, self.count + 1) ** -self.zipf
        return rng.multinomial(requests, weights / weights.sum())

    def draw_length_factors(self, rng: np.random.Generator) -> FloatArray:
        """Return, for each client, the factor by which its mean lengths differ from the overall means."""
        variance = math.log1p(self.length_cv * self.length_cv)
        return rng.lognormal(-variance / 2, math.sqrt(variance), self.count)


def client_mix(
    *,
    num_requests: int,
    clients: Clients,
    pace: TimedRate,
    prompt: Lengths,
    output: Lengths,
    client_prompt_tokens: int = 0,
    seed: int = 0,
    name: str = "clients",
) -> Workload:
    """Return requests of many clients at the total rate of the arrival process `pace`; each client is one session.

    Each client's requests are spread over the whole run with gamma-distributed gaps from a random phase. So exactly
    `num_requests` arrive in the time in which `pace` sends this number on average. `prompt` and `output` are drawn per
    request and multiplied by the client's length factors; the overall means are unchanged, up to rounding. With
    `client_prompt_tokens`, every prompt also begins with its client's system prompt. Raises InvalidInput.
    """
    check_count("requests", num_requests)
    rng = random_stream(seed, "arrivals")
    counts = clients.draw_request_counts(num_requests, rng)
    client = np.repeat(np.arange(clients.count), counts)
    begins = np.concatenate(([0], np.cumsum(counts)))
    sums = np.concatenate(([0.0], np.cumsum(unit_gaps(num_requests, clients.burstiness, rng))))
    own = sums[1:] - np.repeat(sums[begins[:-1]], counts)
    whole = np.repeat(sums[begins[1:]] - sums[begins[:-1]], counts)
    around = (own / np.where(whole > 0, whole, 1.0) + rng.random(clients.count)[client]) % 1.0
    order = np.argsort(around, kind="stable")
    client, expected = client[order], around[order] * num_requests
    lengths = random_stream(seed, "lengths")
    prompt_tokens = _scale_lengths(prompt, client, clients.draw_length_factors(lengths), lengths)
    output_tokens = _scale_lengths(output, client, clients.draw_length_factors(lengths), lengths)
    content = None
    if client_prompt_tokens:
        content = add_prefix(client, client_prompt_tokens, prompt_tokens, clients.count)
        prompt_tokens = prompt_tokens + client_prompt_tokens
    return Workload(
        arrival_s=pace.when_s(expected),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        content=content,
        session=client,
        name=name,
    )


def _scale_lengths(
    lengths: Lengths, client: IntArray, factors: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Return one length per request, multiplied by its client's factor; the overall mean stays that of `lengths`."""
    factor = factors[client]
    drawn = lengths.draw(len(client), rng) * (factor / factor.mean())
    whole: IntArray = np.clip(np.rint(drawn), 1, MAX_REQUEST_TOKENS).astype(np.int64)
    return whole


def user_loop(
    *,
    users: int,
    num_requests: int,
    think_time: ThinkTime,
    prompt: Lengths,
    output: Lengths,
    rank_correlation: float = 0.0,
    seed: int = 0,
    name: str = "users",
) -> Workload:
    """Return `num_requests` requests of `users` users, who each send the next request a think time after the response.

    Only think times determine how often a user sends, so all users finish at about the same time. The first request of
    a user also follows a think time. Raises InvalidInput for fewer requests than users.
    """
    check_count("users", users)
    check_count("requests", num_requests)
    if num_requests < users:
        raise InvalidInput(
            f"--num-prompts {num_requests:,} is less than --users {users:,}: use at least one request per user"
        )
    prompt_tokens, output_tokens = draw_lengths(prompt, output, num_requests, rank_correlation, seed)
    think_s, nominal_s, user = _send_times(think_time, users, num_requests, seed)
    after = _previous_rows(user)
    return Workload.sort_arrivals(
        arrival_s=nominal_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        session=user,
        after_request=after,
        think_s=np.where(after < 0, 0.0, think_s),
        name=name,
        remark=False,
    )


def _send_times(
    think_time: ThinkTime, users: int, requests: int, seed: int
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return think times, send times and users of the first `requests` requests, as if responses took no time."""
    rounds = -(-requests // users)
    while True:
        think_s = think_time.draw_s(rounds * users, random_stream(seed, "thinking")).reshape(rounds, users)
        sent_s = np.cumsum(think_s, axis=0)
        order = np.argsort(sent_s, axis=None, kind="stable")[:requests]
        if sent_s.ravel()[order[-1]] <= sent_s[-1].min():  # no user's next request would be earlier
            return think_s.ravel()[order], sent_s.ravel()[order], order % users
        rounds *= 2


def _previous_rows(user: IntArray) -> IntArray:
    """Return, for each request, the index of the same user's previous request; -1 if there is none."""
    order = np.argsort(user, kind="stable")
    again = np.diff(user[order], prepend=-1) == 0
    before = np.full(len(user), -1, dtype=np.int64)
    before[order[again]] = order[np.flatnonzero(again) - 1]
    return before
