"""Workloads: sorted, cut, scaled and fitted, and a fingerprint that sees every column."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from small_workloads import small

from capacity.base.errors import InvalidInput
from capacity.workload import (
    PromptContent,
    Workload,
    random_requests,
)


def test_sorting_is_stable_remarks_and_carries_links() -> None:
    workload = Workload.sort_arrivals(
        arrival_s=[5.0, 0.0, 5.0, 0.0],
        prompt_tokens=[1, 2, 3, 4],
        output_tokens=[1, 1, 1, 1],
        after_request=[1, -1, 3, 1],
        think_s=[0.5, 0, 0.7, 0.1],
        content=PromptContent.from_segments([[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]),
    )
    assert workload.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert workload.after_request is not None
    assert workload.think_s is not None
    assert workload.after_request.tolist() == [-1, 0, 0, 1]
    assert workload.think_s.tolist() == [0, 0.1, 0.5, 0.7]
    assert workload.notices == ("arrivals were not in order: sorted, 4 of 4 requests moved",)
    many = Workload.sort_arrivals(
        arrival_s=[1.0, 0.0] * 500, prompt_tokens=np.arange(1000) + 1, output_tokens=[1] * 1000
    )
    assert (np.diff(many.prompt_tokens) == 2).sum() == 998  # equal arrivals kept their order
    with pytest.raises(InvalidInput, match="contains 7, but there are only 1 requests"):
        Workload.sort_arrivals(
            arrival_s=[0], prompt_tokens=[1], output_tokens=[1], after_request=[7], think_s=[0]
        )


def test_facts() -> None:
    workload = small()
    assert (len(workload), workload.span_s, workload.request_rate_per_s) == (3, 1.0, 2.0)
    assert workload.arrival_cv == 1.0  # gaps 1 and 0
    at_once = workload.all_at_once()
    assert at_once.request_rate_per_s == math.inf
    assert at_once.arrival_cv is None
    assert not workload.is_closed_loop
    assert workload.in_closed_loop(2).is_closed_loop


def test_retiming() -> None:
    workload = random_requests(num_requests=500, input_len=10, output_len=5, request_rate_per_s=3.0)
    assert (workload.scale_rate(4.0).arrival_s * 4 == workload.arrival_s).all()
    assert workload.set_rate(17.0).request_rate_per_s == pytest.approx(17.0, rel=1e-12)
    assert workload.set_rate(17.0).arrival_cv == pytest.approx(workload.arrival_cv, rel=1e-9)
    assert (workload.scale_times(0.5).arrival_s == workload.arrival_s / 2).all()
    assert workload.shift_to_zero().arrival_s[0] == 0
    with pytest.raises(InvalidInput, match="all requests of random arrive at once"):
        workload.all_at_once().set_rate(1.0)
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.scale_rate(factor)
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.set_rate(factor)
        with pytest.raises(InvalidInput, match="finite and above 0"):
            workload.scale_times(factor)


def test_scaling_the_rate_leaves_people_thinking_as_long() -> None:
    workload = small(after_request=[-1, 0, 1], think_s=[0, 3, 4])
    assert workload.scale_rate(2.0).think_s.tolist() == [0, 3, 4]  # type: ignore[union-attr]
    assert workload.scale_times(2.0).think_s.tolist() == [0, 6, 8]  # type: ignore[union-attr]
    assert workload.in_open_loop().after_request is None


def test_parts() -> None:
    workload = small()
    assert len(workload.head(2)) == 2
    assert workload.head(9) is workload
    assert workload.select_between(0.5, 1.5).prompt_tokens.tolist() == [20, 30]
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        workload.head(0)
    with pytest.raises(InvalidInput, match="arrivals run from 0 s to 1 s"):
        workload.select_between(5.0, 6.0)


def test_a_request_left_out_passes_its_trigger_on() -> None:
    workload = Workload(
        arrival_s=np.zeros(5),
        prompt_tokens=np.asarray([1, 100, 1, 100, 1]),
        output_tokens=np.ones(5),
        after_request=np.asarray([-1, 0, 1, -1, 3]),
        think_s=np.ones(5),
    )
    kept = workload.fit_to(50)
    assert kept.after_request.tolist() == [-1, 0, -1]  # type: ignore[union-attr]
    assert kept.notices == ("2 of 5 requests dropped: longer than 50 tokens",)


def test_fit_to_a_context() -> None:
    content = PromptContent.from_segments([[(0, 4), (1, 6)], [(0, 20)], [(0, 4), (2, 26)]])
    workload = small(output_tokens=[1, 2, 30], content=content)
    clipped = workload.fit_to(22, how="clip")
    assert clipped.prompt_tokens.tolist() == [10, 20, 21]
    assert clipped.output_tokens.tolist() == [1, 2, 1]
    assert clipped.content is not None
    assert clipped.content.request_segments(2) == [(0, 4), (2, 17)]
    assert clipped.notices == ("1 of 3 requests clipped to 22 tokens",)
    assert workload.fit_to(60) is workload
    with pytest.raises(InvalidInput, match="the shortest has 11"):
        workload.fit_to(5)
    with pytest.raises(InvalidInput, match="at least 2 tokens"):
        workload.fit_to(1)


def test_what_clients_ask_for_goes_with_its_request() -> None:
    workload = Workload.sort_arrivals(
        arrival_s=[2.0, 0.0, 1.0],
        prompt_tokens=[30, 10, 20],
        output_tokens=[3, 1, 2],
        max_tokens=[99, 77, 88],
    )

    def asked(part: Workload) -> list[int]:
        assert part.max_tokens is not None
        return part.max_tokens.tolist()

    assert asked(workload) == [77, 88, 99]
    assert asked(workload.head(2)) == [77, 88]
    assert asked(workload.select_between(0.5, 3.0)) == [88, 99]
    assert asked(workload.in_closed_loop(2)) == asked(workload.scale_rate(3.0)) == [77, 88, 99]
    assert asked(workload.fit_to(31, how="clip")) == [21, 11, 1]  # what is left
    without = replace(workload, max_tokens=None)
    assert without.fingerprint() != workload.fingerprint()
    with pytest.raises(InvalidInput, match="max_tokens of request 1 is below 1"):
        replace(workload, max_tokens=np.array([1, 0, 1]))


def test_ticks_are_spread_evenly_and_in_order() -> None:
    workload = Workload(arrival_s=[0, 0, 0, 3, 6, 6], prompt_tokens=[1, 2, 3, 4, 5, 6], output_tokens=[1] * 6)  # type: ignore[arg-type]
    spread = workload.spread_within_ticks(3.0)
    assert spread.arrival_s.tolist() == [0, 1, 2, 3, 6, 7.5]
    assert spread.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InvalidInput, match="the tick must be"):
        workload.spread_within_ticks(0.0)


def test_the_fingerprint_sees_every_column() -> None:
    workload = small(priority=[0, 0, 1], session=[0, 0, 1], after_request=[-1, 0, -1], think_s=[0, 1, 0])
    changed = [
        workload,
        replace(workload, arrival_s=[0.0, 0.5, 1.0]),
        replace(workload, prompt_tokens=[10, 20, 31]),
        replace(workload, output_tokens=[1, 2, 4]),
        replace(workload, priority=[0, 1, 1]),
        replace(workload, session=[0, 1, 1]),
        replace(workload, after_request=[-1, 0, 1]),
        replace(workload, think_s=[0, 2, 0]),
        replace(workload, concurrency=2),
        replace(workload, content=PromptContent.from_segments([[(0, 10)], [(0, 20)], [(1, 30)]])),
        replace(workload, content=PromptContent.from_segments([[(0, 10)], [(0, 20)], [(0, 30)]])),
    ]
    assert len({each.fingerprint() for each in changed}) == len(changed)
    assert replace(workload, name="other", notices=("x",)).fingerprint() == workload.fingerprint()


def test_no_pandas_and_no_scipy_are_imported() -> None:
    code = "import sys, capacity.workload; print(sorted({'pandas', 'scipy', 'pydantic', 'rich'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.sub(r"\s", "", printed) == "[]"
