"""A workload: the requests of one run as columns, in order of arrival."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.column_links import check_images, check_links, relink
from capacity.workload.columns import MAX_TIME_S, FloatArray, IntArray, float_column, int_column, token_column
from capacity.workload.content import BlockRuns, PromptContent

MAX_CLIENT_LATENCY_S = 60.0
Check = Callable[..., FloatArray | IntArray]
OPTIONAL: Mapping[str, Check] = {  # optional columns and their checks
    "priority": int_column,
    "session": int_column,
    "after_request": partial(int_column, minimum=-1),
    "think_s": partial(float_column, maximum=MAX_TIME_S),
    "max_tokens": token_column,
    "adapter": partial(int_column, minimum=0),
    "images": partial(int_column, minimum=0),
    "image_tokens": partial(int_column, minimum=0),
    "audio_tokens": partial(int_column, minimum=0),
    "sample_of": partial(int_column, minimum=0),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Requests sorted by arrival; columns are read-only arrays of equal length.

    *Open loop*: request i is sent at `arrival_s[i]`. *Closed loop*: with `concurrency`, requests are sent in order.
    Each is sent at its arrival, or later when fewer than `concurrency` requests of the client are in flight.
    *Sessions*: if `after_request[i]` is not -1, request i is sent `think_s[i]` after request `after_request[i]` (an
    earlier row) completes at the client. Its `arrival_s` is then nominal: the time in the trace, or the time at which
    it would be sent if responses took no time. `session[i]` groups the turns of one conversation, for routers.

    `max_tokens[i]` is the number of output tokens that the request allows, for which some engines reserve KV. If it is
    below `output_tokens[i]`, the number of generated tokens, engines reserve `output_tokens[i]`. `client_latency_s`:
    round trip between the client and the engine's API server, half of it in each direction; None: the value of
    `Traffic` is used. `offline`: whether the engine's own process creates the requests, as in `vllm bench throughput`,
    so that no API server streams tokens.

    Equal arrivals keep their order. `content`: the prefixes that prompts share; None: prompts share none. `notices`:
    notes of trace readers and generators, which answers include. `asked_per_s`: rate (requests/s) at which arrivals
    were drawn; None: the rate of these requests. `expected_over_mean`, for prompts and outputs: mean of the length
    distribution divided by the mean of these requests; None: unknown. `part`: the part of a varying rate that the
    requests cover, as text; None: a whole period, or a constant rate. Raises InvalidInput with column, request and
    value.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    priority: IntArray | None = None  # lower values are served first, as in vLLM
    content: PromptContent | None = None
    session: IntArray | None = None
    after_request: IntArray | None = None  # row whose completion triggers this one; -1: none
    think_s: FloatArray | None = None
    max_tokens: IntArray | None = None  # output tokens that the client allows; None: unlimited
    adapter: IntArray | None = None  # LoRA adapter; 0: none
    images: IntArray | None = None  # images at the prompt's start, counted in prompt_tokens
    image_tokens: IntArray | None = None  # tokens per image
    audio_tokens: IntArray | None = None  # of the clip after the images, counted in prompt_tokens; 0: none
    sample_of: IntArray | None = None  # number of the prompt that samples share
    concurrency: int | None = None
    client_latency_s: float | None = None
    offline: bool = False
    name: str = "workload"
    source: str | None = None
    notices: tuple[str, ...] = ()
    asked_per_s: float | None = None
    expected_over_mean: tuple[float, float] | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        arrival_s = float_column("arrival_s", self.arrival_s, maximum=MAX_TIME_S)
        count = len(arrival_s)
        if count == 0:
            raise InvalidInput(f"{self.name} has no requests; at least one is needed")
        if (np.diff(arrival_s) < 0).any():
            at = int(np.argmax(np.diff(arrival_s) < 0)) + 1
            raise InvalidInput(
                f"arrival_s of request {at} is before its predecessor's: {arrival_s[at]:g} < {arrival_s[at - 1]:g}; "
                "use Workload.sort_arrivals() for arrivals in any order"
            )
        object.__setattr__(self, "arrival_s", arrival_s)
        for name in ("prompt_tokens", "output_tokens"):
            object.__setattr__(self, name, token_column(name, getattr(self, name), length=count))
        for name, values in self.optional_columns.items():
            object.__setattr__(self, name, OPTIONAL[name](name, values, length=count))
        latency_s = self.client_latency_s
        if latency_s is not None and not 0 <= latency_s <= MAX_CLIENT_LATENCY_S:
            raise InvalidInput(f"client_latency_s is {latency_s!r}: must be 0 to {MAX_CLIENT_LATENCY_S:g} s")
        check_links(self)
        check_images(self)

    @classmethod
    def sort_arrivals(
        cls,
        *,
        arrival_s: object,
        content: PromptContent | None = None,
        after_request: object = None,
        notices: tuple[str, ...] = (),
        remark: bool = True,
        **others: Any,
    ) -> Workload:
        """Return a workload from requests in any order; they are stably sorted by arrival.

        `others`: columns in the order of `arrival_s`, and other fields. `remark`: whether to note a change of order.
        """
        unsorted = float_column("arrival_s", arrival_s)
        count = len(unsorted)
        order = np.argsort(unsorted, kind="stable")
        moved = int(np.count_nonzero(order != np.arange(count)))
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)

        after = (
            None
            if after_request is None
            else int_column("after_request", after_request, length=count, minimum=-1)
        )
        if after is not None:
            if (after >= count).any():
                raise InvalidInput(
                    f"after_request contains {int(after.max())}, but there are only {count} requests"
                )
            after = np.where(after[order] < 0, -1, place[after[order]])
        if moved and remark:
            notices = (*notices, f"arrivals were not in order: sorted, {moved:,} of {count:,} requests moved")
        for name in ("prompt_tokens", "output_tokens", *OPTIONAL):
            if others.get(name) is not None:
                column = float_column if name == "think_s" else int_column
                others[name] = column(name, others[name], length=count)[order]
        return cls(
            arrival_s=unsorted[order],
            content=None if content is None else content.take(order),
            after_request=after,
            notices=notices,
            **others,
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def optional_columns(self) -> dict[str, FloatArray | IntArray]:
        """Return the optional columns that the workload has, by name."""
        columns = {name: getattr(self, name) for name in OPTIONAL}
        return {name: values for name, values in columns.items() if values is not None}

    @property
    def span_s(self) -> float:
        """Return the time from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def request_rate_per_s(self) -> float:
        """Return the mean arrival rate (requests/s) after the first arrival; infinite if all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else float("inf")

    @property
    def offered_per_s(self) -> float:
        """Return the rate (requests/s) at which arrivals were drawn or, if unknown, the rate of these requests."""
        return self.request_rate_per_s if self.asked_per_s is None else self.asked_per_s

    @property
    def arrival_cv(self) -> float | None:
        """Return the coefficient of variation of arrival gaps (1 for Poisson); None with fewer than two gaps."""
        gaps_s = np.diff(self.arrival_s)
        return float(gaps_s.std() / gaps_s.mean()) if len(gaps_s) > 1 and self.span_s > 0 else None

    @property
    def mean_prompt_tokens(self) -> float:
        """Return the mean prompt tokens over all requests."""
        return float(self.prompt_tokens.mean())

    @property
    def long_run_tokens(self) -> tuple[float, float]:
        """Return the long-run mean prompt and output tokens.

        In an open loop these are the means of the length distributions. In a closed loop they are the means of these
        requests, because the request rate depends on their lengths.
        """
        prompt, output = self.mean_prompt_tokens, float(self.output_tokens.mean())
        if self.expected_over_mean is None or self.is_closed_loop:
            return prompt, output
        return prompt * self.expected_over_mean[0], output * self.expected_over_mean[1]

    @property
    def requested_tokens(self) -> IntArray:
        """Return prompt tokens plus `max_tokens` of each request; without `max_tokens`, prompt plus output tokens."""
        asked = self.output_tokens if self.max_tokens is None else self.max_tokens
        return self.prompt_tokens + np.maximum(asked, self.output_tokens)

    @property
    def is_closed_loop(self) -> bool:
        """Return whether any request waits for the completion of another request."""
        return self.concurrency is not None or (
            self.after_request is not None and bool((self.after_request >= 0).any())
        )

    def block_runs(self, block_tokens: int) -> BlockRuns | None:
        """Return the ids of the full KV blocks of each prompt and response; None if no prompts share content."""
        if self.content is None:
            return None
        runs = self.content.block_runs(block_tokens, output_tokens=self.output_tokens)
        return runs if self.adapter is None else runs.separate_by_adapter(self.adapter)

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of all values that affect a simulation, which is the same on every machine."""
        digest = hashlib.sha256(repr((len(self), self.concurrency)).encode())
        columns = [self.arrival_s, self.prompt_tokens, self.output_tokens, self.priority, self.session]
        columns += [self.after_request, self.think_s]
        if self.content is not None:
            content = self.content
            columns += [content.offsets, content.segment_ids, content.segment_tokens, content.answer_ids]
        for column in columns:
            digest.update(b"-" if column is None else column.astype(column.dtype.newbyteorder("<")).tobytes())
        # without these columns, the fingerprint is the same as before they were introduced
        later = self.optional_columns
        for name in ("max_tokens", "adapter", "images", "image_tokens", "audio_tokens", "sample_of"):
            if name in later:
                title = b"" if name == "image_tokens" else name.encode()  # shares its key with `images`
                digest.update(title + later[name].astype("<i8").tobytes())
        if self.client_latency_s:
            digest.update(b"client_latency_s" + np.float64(self.client_latency_s).tobytes())
        if self.offline:
            digest.update(b"offline")
        return digest.hexdigest()

    @property
    def encoded_tokens(self) -> IntArray:
        """Return the number of image and audio tokens of each prompt."""
        tokens = np.zeros(len(self), dtype=np.int64)
        if self.images is not None and self.image_tokens is not None:
            tokens += self.images * self.image_tokens
        return tokens if self.audio_tokens is None else tokens + self.audio_tokens

    def head(self, count: int) -> Workload:
        """Return the first `count` requests, or all of them if there are fewer."""
        if count < 1:
            raise InvalidInput(f"the number of requests must be at least 1, not {count}")
        return self if count >= len(self) else self.select(np.arange(count))

    def select_between(self, start_s: float, end_s: float) -> Workload:
        """Return the requests that arrive from `start_s` to before `end_s`; arrival times are unchanged."""
        first, last = np.searchsorted(self.arrival_s, [start_s, end_s])
        if not first < last:
            raise InvalidInput(
                f"no request of {self.name} arrives from {start_s:g} s until {end_s:g} s; "
                f"arrivals run from {self.arrival_s[0]:g} s to {self.arrival_s[-1]:g} s"
            )
        return self.select(np.arange(first, last))

    def select(self, rows: IntArray) -> Workload:
        """Return the requests with the row numbers `rows`, which must be in ascending order.

        A request that waits for an omitted request waits for the nearest selected request before it in the chain.
        """
        rows = np.asarray(rows, dtype=np.int64)
        columns: Mapping[str, Any] = {name: values[rows] for name, values in self.optional_columns.items()}
        if self.after_request is not None:
            columns = {**columns, "after_request": relink(self.after_request, rows)}
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            content=None if self.content is None else self.content.take(rows),
            **columns,
            asked_per_s=None,
            expected_over_mean=None,
        )

    def fit_to(self, max_model_len: int, *, how: Literal["drop", "clip"] = "drop") -> Workload:
        """Return requests of at most `max_model_len` tokens, prompt and output together.

        `drop` omits longer requests. `clip` shortens the output, at least to one token, and then the end of the prompt.
        Both add the number of affected requests to `notices`.
        """
        if max_model_len < 2:
            raise InvalidInput(
                f"max_model_len must be at least 2 tokens (one of prompt, one of output), not {max_model_len}"
            )
        too_long = self.prompt_tokens + self.output_tokens > max_model_len
        touched = int(too_long.sum())
        if not touched:
            return self
        if how == "clip":
            prompt_tokens = np.minimum(self.prompt_tokens, max_model_len - 1)
            left, asked = max_model_len - prompt_tokens, self.max_tokens
            return replace(
                self,
                prompt_tokens=prompt_tokens,
                output_tokens=np.minimum(self.output_tokens, left),
                expected_over_mean=None,
                max_tokens=None if asked is None else np.minimum(asked, left),
                content=None if self.content is None else self.content.clip(prompt_tokens),
                notices=(
                    *self.notices,
                    f"{touched:,} of {len(self):,} requests clipped to {max_model_len:,} tokens",
                ),
            )
        if touched == len(self):
            raise InvalidInput(
                f"every request of {self.name} is longer than {max_model_len:,} tokens: "
                f"the shortest has {int((self.prompt_tokens + self.output_tokens).min()):,}"
            )
        notice = f"{touched:,} of {len(self):,} requests dropped: longer than {max_model_len:,} tokens"
        return replace(self.select(np.flatnonzero(~too_long)), notices=(*self.notices, notice))

    def scale_rate(self, factor: float) -> Workload:
        """Return the requests at `factor` times the rate: gaps between arrivals are shorter, think times unchanged."""
        if not (0 < factor < float("inf")):
            raise InvalidInput(f"the rate factor must be finite and above 0, not {factor}")
        asked_per_s = None if self.asked_per_s is None else self.asked_per_s * factor
        return replace(self, arrival_s=self.arrival_s / factor, asked_per_s=asked_per_s)

    def set_rate(self, requests_per_s: float) -> Workload:
        """Return the requests with gaps between arrivals scaled so that the mean rate is `requests_per_s`."""
        if not (0 < requests_per_s < float("inf")):
            raise InvalidInput(f"the request rate must be finite and above 0, not {requests_per_s}")
        if self.span_s == 0:
            raise InvalidInput(f"all requests of {self.name} arrive at once, so their rate cannot be changed")
        paced = self.scale_rate(requests_per_s / self.request_rate_per_s)
        return replace(paced, asked_per_s=requests_per_s)

    def scale_times(self, factor: float) -> Workload:
        """Return the workload with all times, including think times, multiplied by `factor`."""
        if not (0 < factor < float("inf")):
            raise InvalidInput(f"the time factor must be finite and above 0, not {factor}")
        think_s = None if self.think_s is None else self.think_s * factor
        asked_per_s = None if self.asked_per_s is None else self.asked_per_s / factor
        return replace(self, arrival_s=self.arrival_s * factor, think_s=think_s, asked_per_s=asked_per_s)

    def shift_to_zero(self) -> Workload:
        """Return the workload with arrival times shifted so that the first request arrives at 0 s."""
        return replace(self, arrival_s=self.arrival_s - self.arrival_s[0])

    def all_at_once(self) -> Workload:
        """Return the workload with all arrivals at 0 s, in the same order, as for an infinite request rate."""
        return replace(self, arrival_s=np.zeros(len(self)), asked_per_s=None)

    def in_closed_loop(self, concurrency: int) -> Workload:
        """Return a closed loop of at most `concurrency` requests in flight; arrival times are set to 0."""
        return replace(self.all_at_once(), concurrency=concurrency)

    def in_session_loop(self) -> Workload:
        """Return a session loop, in which the gap before an arrival becomes a think time after the previous response.

        The think times are upper bounds, because a trace without completion times does not show which part of a gap was
        service. Raises InvalidInput if there are no sessions.
        """
        if self.session is None:
            raise InvalidInput(f"{self.name} has no sessions, so requests cannot wait for each other")
        order = np.argsort(self.session, kind="stable")
        follows = np.concatenate(([False], np.diff(self.session[order]) == 0))
        after = np.full(len(self), -1, dtype=np.int64)
        after[order[1:][follows[1:]]] = order[:-1][follows[1:]]
        gaps_s = self.arrival_s - self.arrival_s[np.maximum(after, 0)]
        return replace(self, after_request=after, think_s=np.where(after >= 0, gaps_s, 0.0))

    def in_open_loop(self) -> Workload:
        """Return the workload with every request sent at its (nominal) arrival time, independent of completions."""
        return replace(self, after_request=None, think_s=None, concurrency=None)

    def spread_within_ticks(self, tick_s: float) -> Workload:
        """Spread requests with the same timestamp evenly over the following `tick_s` seconds, in order.

        Use it for traces with a coarse clock, where simultaneous arrivals are an artefact.
        """
        if not (0 < tick_s < float("inf")):
            raise InvalidInput(f"the tick must be finite and above 0 s, not {tick_s}")
        ticks, first, members = np.unique(self.arrival_s, return_index=True, return_counts=True)
        length_s = np.minimum(tick_s, np.diff(ticks, append=np.inf))
        rank = np.arange(len(self)) - np.repeat(first, members)
        return replace(self, arrival_s=self.arrival_s + rank * np.repeat(length_s / members, members))
