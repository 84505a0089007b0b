"""People at a service: each asks, waits for the answer, thinks, and asks again."""

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import FloatArray, IntArray
from capacity.workload.lengths import Lengths, rank_correlated
from capacity.workload.randomness import random_stream
from capacity.workload.synthetic import ThinkTime, check_count
from capacity.workload.workload import Workload


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
    """`num_requests` of so many users; a user's next request is sent a think time after its answer.

    Thinking alone decides who asks how often, so that all end at about the same time.

    The first request of each comes after a think time too, as of people who are there already: where thinking is
    exponential, what is left of a thought is as long as a whole one. Raises InvalidInput for fewer requests than users.
    """
    check_count("users", users)
    check_count("requests", num_requests)
    if num_requests < users:
        raise InvalidInput(
            f"--num-prompts {num_requests:,} is less than --users {users:,}, who each ask at least once: raise it"
        )
    lengths_rng = random_stream(seed, "lengths")
    prompt_tokens, output_tokens = rank_correlated(
        prompt.draw(num_requests, lengths_rng),
        output.draw(num_requests, lengths_rng),
        rank_correlation=rank_correlation,
        rng=random_stream(seed, "correlation"),
    )
    think_s, nominal_s, user = _asked(think_time, users, num_requests, seed)
    after = _before(user)
    return Workload.sorted(
        arrival_s=nominal_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        session=user,
        after_request=after,
        think_s=np.where(after < 0, 0.0, think_s),
        name=name,
        remark=False,
    )


def _asked(
    think_time: ThinkTime, users: int, requests: int, seed: int
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Of the first `requests` of all, in their order if answers took no time: thought before, sent at, and by whom."""
    rounds = -(-requests // users)
    while True:
        think_s = think_time.draw_s(rounds * users, random_stream(seed, "thinking")).reshape(rounds, users)
        sent_s = np.cumsum(think_s, axis=0)
        order = np.argsort(sent_s, axis=None, kind="stable")[:requests]
        if sent_s.ravel()[order[-1]] <= sent_s[-1].min():  # nobody's next one would come before
            return think_s.ravel()[order], sent_s.ravel()[order], order % users
        rounds *= 2


def _before(user: IntArray) -> IntArray:
    """The row of each user's last request before each row; -1: none."""
    order = np.argsort(user, kind="stable")
    again = np.diff(user[order], prepend=-1) == 0
    before = np.full(len(user), -1, dtype=np.int64)
    before[order[again]] = order[np.flatnonzero(again) - 1]
    return before
