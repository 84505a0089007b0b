"""A workload: the requests of one run, as columns, in the order in which they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.column_links import check_images, check_links, relinked
from capacity.workload.columns import MAX_TIME_S, FloatArray, IntArray, float_column, int_column, token_column
from capacity.workload.content import BlockRuns, PromptContent

MAX_CLIENT_LATENCY_S = 60.0
Check = Callable[..., FloatArray | IntArray]
OPTIONAL: Mapping[str, Check] = {  # columns that a workload may have, and their checks
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

    *Open loop*: request i is sent at `arrival_s[i]`. *Closed loop*: with `concurrency`, a request is sent at its
    arrival or when fewer than that many are in flight at the client, whichever is later, in order.
    *Sessions*: where `after_request[i]` is not -1, request i is sent `think_s[i]` after request `after_request[i]`
    (an earlier row) completes at the client; its `arrival_s` is then nominal: where it stood in its trace, or would
    stand if serving took no time. `session[i]` groups turns of one conversation, for routers.
    `max_tokens[i]` is what the request asks for, which some engines reserve: an engine takes it as at least
    `output_tokens[i]`, which the model then generates.
    `client_latency_s` is what lies between the client and the engine's API server, half of it each way; None: nobody
    has said, and a deployment's traffic does. `offline`: the engine's own process makes the requests, as in `vllm bench
    throughput`, so no API server streams their tokens.

    Equal arrivals keep their order. `content` says which prompts share prefixes; None: no two do.
    `notices` are the remarks of readers and generators that a report should show. `asked_per_s` is the rate at which
    arrivals were drawn, which these few are near; None: they themselves say it. `expected_over_mean`, of prompts and
    of outputs: the mean of the distribution that they were drawn from over that of these few; None: not known. `part`:
    which part of a varying rate they are, in words; None: a whole period, or a steady rate.
    Raises InvalidInput, naming column, request and value.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    priority: IntArray | None = None  # lower is served first, as in vLLM
    content: PromptContent | None = None
    session: IntArray | None = None
    after_request: IntArray | None = None  # row whose completion triggers this one; -1: none
    think_s: FloatArray | None = None
    max_tokens: IntArray | None = None  # output tokens that the client allows; None: as many as come
    adapter: IntArray | None = None  # the LoRA adapter that it is for; 0: none
    images: IntArray | None = None  # images at the prompt's start, counted in prompt_tokens
    image_tokens: IntArray | None = None  # tokens of each of them
    audio_tokens: IntArray | None = None  # of the clip after them, counted in prompt_tokens; 0: none
    sample_of: IntArray | None = None  # of samples of one prompt, its number
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
                "use Workload.sorted() for arrivals in any order"
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
    def sorted(
        cls,
        *,
        arrival_s: object,
        content: PromptContent | None = None,
        after_request: object = None,
        notices: tuple[str, ...] = (),
        remark: bool = True,
        **others: Any,
    ) -> Workload:
        """A workload from arrivals in any order: sorted, equal arrivals kept in order, with a remark if any moved.

        `others`: its further columns in the same order, and its other fields.
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
                raise InvalidInput(f"after_request names request {int(after.max())} of {count}")
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

    # facts

    @property
    def optional_columns(self) -> dict[str, FloatArray | IntArray]:
        """Those of `OPTIONAL` that it has, by name."""
        columns = {name: getattr(self, name) for name in OPTIONAL}
        return {name: values for name, values in columns.items() if values is not None}

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def request_rate_per_s(self) -> float:
        """Arrivals after the first, over the span; infinite when all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else float("inf")

    @property
    def offered_per_s(self) -> float:
        """Requests per second that come in the long run: as asked for, or as these do."""
        return self.request_rate_per_s if self.asked_per_s is None else self.asked_per_s

    @property
    def arrival_cv(self) -> float | None:
        """Coefficient of variation of the gaps between arrivals: 1 for Poisson; None with fewer than two gaps."""
        gaps_s = np.diff(self.arrival_s)
        return float(gaps_s.std() / gaps_s.mean()) if len(gaps_s) > 1 and self.span_s > 0 else None

    @property
    def mean_prompt_tokens(self) -> float:
        """Tokens of a prompt, over all requests."""
        return float(self.prompt_tokens.mean())

    @property
    def long_run_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens for as long as the load lasts.

        Those of the distributions that were drawn from, where requests arrive by the clock; those of these requests in
        a closed loop, whose rate follows from them.
        """
        prompt, output = self.mean_prompt_tokens, float(self.output_tokens.mean())
        if self.expected_over_mean is None or self.is_closed_loop:
            return prompt, output
        return prompt * self.expected_over_mean[0], output * self.expected_over_mean[1]

    @property
    def asked_tokens(self) -> IntArray:
        """Of each request the prompt and the output that its client asks for: what it gets, where nobody says more."""
        asked = self.output_tokens if self.max_tokens is None else self.max_tokens
        return self.prompt_tokens + np.maximum(asked, self.output_tokens)

    @property
    def is_closed_loop(self) -> bool:
        """Whether any request waits for another's completion rather than for the clock alone."""
        return self.concurrency is not None or (
            self.after_request is not None and bool((self.after_request >= 0).any())
        )

    def block_runs(self, block_tokens: int) -> BlockRuns | None:
        """Identities of the full blocks of every prompt and its answer; None where no two prompts share anything."""
        if self.content is None:
            return None
        runs = self.content.block_runs(block_tokens, output_tokens=self.output_tokens)
        return runs if self.adapter is None else runs.kept_apart_by(self.adapter)

    def fingerprint(self) -> str:
        """SHA-256 of everything that can change a simulation: equal workloads, equal fingerprints, on any machine."""
        digest = hashlib.sha256(repr((len(self), self.concurrency)).encode())
        columns = [self.arrival_s, self.prompt_tokens, self.output_tokens, self.priority, self.session]
        columns += [self.after_request, self.think_s]
        if self.content is not None:
            content = self.content
            columns += [content.offsets, content.segment_ids, content.segment_tokens, content.answer_ids]
        for column in columns:
            digest.update(b"-" if column is None else column.astype(column.dtype.newbyteorder("<")).tobytes())
        # a workload without these columns keeps the fingerprint of before there were such
        later = self.optional_columns
        for name in ("max_tokens", "adapter", "images", "image_tokens", "audio_tokens", "sample_of"):
            if name in later:
                title = b"" if name == "image_tokens" else name.encode()  # those of `images`
                digest.update(title + later[name].astype("<i8").tobytes())
        if self.client_latency_s:
            digest.update(b"client_latency_s" + np.float64(self.client_latency_s).tobytes())
        if self.offline:
            digest.update(b"offline")
        return digest.hexdigest()

    @property
    def encoded_tokens(self) -> IntArray:
        """Of each prompt, those of its images and of its clip."""
        tokens = np.zeros(len(self), dtype=np.int64)
        if self.images is not None and self.image_tokens is not None:
            tokens += self.images * self.image_tokens
        return tokens if self.audio_tokens is None else tokens + self.audio_tokens

    # parts

    def head(self, count: int) -> Workload:
        """The first `count` requests, or all of them if there are fewer."""
        if count < 1:
            raise InvalidInput(f"the number of requests must be at least 1, not {count}")
        return self if count >= len(self) else self.take(np.arange(count))

    def between(self, start_s: float, end_s: float) -> Workload:
        """The requests that arrive from `start_s` until before `end_s`; arrivals keep their clock."""
        first, last = np.searchsorted(self.arrival_s, [start_s, end_s])
        if not first < last:
            raise InvalidInput(
                f"no request of {self.name} arrives from {start_s:g} s until {end_s:g} s; "
                f"arrivals run from {self.arrival_s[0]:g} s to {self.arrival_s[-1]:g} s"
            )
        return self.take(np.arange(first, last))

    def take(self, rows: IntArray) -> Workload:
        """The requests `rows`, which must rise. One whose trigger is left out follows the nearest earlier one taken."""
        rows = np.asarray(rows, dtype=np.int64)
        columns: Mapping[str, Any] = {name: values[rows] for name, values in self.optional_columns.items()}
        if self.after_request is not None:
            columns = {**columns, "after_request": relinked(self.after_request, rows)}
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
        """Only requests of at most `max_model_len` tokens, prompt and output together.

        `drop` leaves longer ones out; `clip` shortens the output to what is left, at least one token, and then
        the prompt's end. Either says in `notices` how many it touched.
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
                content=None if self.content is None else self.content.clipped(prompt_tokens),
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
        return replace(self.take(np.flatnonzero(~too_long)), notices=(*self.notices, notice))

    # the same, otherwise timed

    def at_rate_factor(self, factor: float) -> Workload:
        """The same shape at `factor` times the rate: arrivals closer, think times (being people's) as they were."""
        if not (0 < factor < float("inf")):
            raise InvalidInput(f"the rate factor must be finite and above 0, not {factor}")
        asked_per_s = None if self.asked_per_s is None else self.asked_per_s * factor
        return replace(self, arrival_s=self.arrival_s / factor, asked_per_s=asked_per_s)

    def at_rate(self, requests_per_s: float) -> Workload:
        """The same shape at `requests_per_s` on average."""
        if not (0 < requests_per_s < float("inf")):
            raise InvalidInput(f"the request rate must be finite and above 0, not {requests_per_s}")
        if self.span_s == 0:
            raise InvalidInput(
                f"all requests of {self.name} arrive at once: there is no shape to bring to another rate"
            )
        paced = self.at_rate_factor(requests_per_s / self.request_rate_per_s)
        return replace(paced, asked_per_s=requests_per_s)

    def time_scaled(self, factor: float) -> Workload:
        """Every time, thinking included, multiplied by `factor`: a film at 1/`factor` of its speed."""
        if not (0 < factor < float("inf")):
            raise InvalidInput(f"the time factor must be finite and above 0, not {factor}")
        think_s = None if self.think_s is None else self.think_s * factor
        asked_per_s = None if self.asked_per_s is None else self.asked_per_s / factor
        return replace(self, arrival_s=self.arrival_s * factor, think_s=think_s, asked_per_s=asked_per_s)

    def from_zero(self) -> Workload:
        """The first request at 0 s."""
        return replace(self, arrival_s=self.arrival_s - self.arrival_s[0])

    def all_at_once(self) -> Workload:
        """Every request at 0 s, in order, as for an infinite request rate."""
        return replace(self, arrival_s=np.zeros(len(self)), asked_per_s=None)

    def in_closed_loop(self, concurrency: int) -> Workload:
        """At most `concurrency` requests in flight at the client, each sent as soon as there is room."""
        return replace(self.all_at_once(), concurrency=concurrency)

    def in_session_loop(self) -> Workload:
        """Each session's next request as long after the completion of the one before as it came after its arrival.

        Upper ends of think times: a trace that has arrivals alone does not say what of a gap was service.
        Raises InvalidInput without sessions.
        """
        if self.session is None:
            raise InvalidInput(f"{self.name} has no sessions whose requests could wait for each other")
        order = np.argsort(self.session, kind="stable")
        follows = np.concatenate(([False], np.diff(self.session[order]) == 0))
        after = np.full(len(self), -1, dtype=np.int64)
        after[order[1:][follows[1:]]] = order[:-1][follows[1:]]
        gaps_s = self.arrival_s - self.arrival_s[np.maximum(after, 0)]
        return replace(self, after_request=after, think_s=np.where(after >= 0, gaps_s, 0.0))

    def in_open_loop(self) -> Workload:
        """Every request at its (nominal) arrival, whatever has completed by then."""
        return replace(self, after_request=None, think_s=None, concurrency=None)

    def spread_within_ticks(self, tick_s: float) -> Workload:
        """Requests that share a timestamp spread evenly over the `tick_s` that follow it, in order.

        For traces whose clock ticks coarsely, where simultaneous arrivals are an artefact.
        """
        if not (0 < tick_s < float("inf")):
            raise InvalidInput(f"the tick must be finite and above 0 s, not {tick_s}")
        ticks, first, members = np.unique(self.arrival_s, return_index=True, return_counts=True)
        length_s = np.minimum(tick_s, np.diff(ticks, append=np.inf))
        rank = np.arange(len(self)) - np.repeat(first, members)
        return replace(self, arrival_s=self.arrival_s + rank * np.repeat(length_s / members, members))
