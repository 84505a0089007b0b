"""The front end's processes: what tokenizes, detokenizes and streams is a server with a rate, and its queue is a wait.

vLLM V1 does all three in its API server's process (pull request 11636: a third process made it slower), of which
`--api-server-count` starts several (17546); SGLang takes requests, tokenizes and streams in one TokenizerManager, which
"may encounter single-core bottlenecks under high-concurrency" (issue 6553), `--tokenizer-worker-num` starts several.
So a request that comes waits behind tokens that go, and the other way round, first come, first served. Tokens of all
streams leave at 1 / `output_token_s` a second and process at the most, however many GPUs make them: TensorRT-LLM
1.0.0rc3 streams 7.4, 8.9 and 9.2 thousand tokens/s of Llama-3.1-8B to 128 clients from 2, 4 and 8 H100 (gap-analysis
rows, 1,024 + 256 tokens), and its first tokens take longer the longer the answers are (0.7 s, 1.1 s, 2.0 s for 128, 256
and 512): they queue behind others' answers.
What every request takes whatever its length, `request_s`, is the event loop's: it turns to all that have come by then,
one after another, and what it did for them goes on at the end of its turn. So of a thousand that come at once none
reaches the engine before nearly all are done.
Left out: an event loop's own order among tokens that are ready, processes that compete for cores, and that a message of
several tokens takes longer than one of a single token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import InvalidInput
from capacity.step import picoseconds

# of Hugging Face's fast tokenizers, one sequence at a time: 1.1 s for 4 MB, about a million tokens
# (charlesxu.io/parallel-tokenizer, read 2026-11; measured there)
MEASURED_INPUT_TOKEN_S = 1.1e-6

# of a chat request in vLLM 0.11.0, which parses the model's chat template anew for each (pull request 25794,
# `resolve_chat_template_kwargs` in the wheel; that of 0.11.1 keeps what it found): 9.3 ms for the 4,101 characters of
# Qwen3's (jinja2 3.1.6, AMD EPYC, measured 2026-11); of bursts of 1,000 the first tokens of DeepSeek-R1 and
# GLM-4.5-Air came 13.6 s later than from the engine (gpustack performance-lab; chosen with those two runs in view)
CHAT_TEMPLATE_S = 0.014


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendTimes:
    """Seconds of what lies around an engine; all zero: the client stands beside the scheduler."""

    request_latency_s: float = 0.0
    response_latency_s: float = 0.0
    output_token_s: float = 0.0
    stream_interval: int = 1
    input_token_s: float = 0.0
    request_s: float = 0.0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InvalidInput(f"a front end has at least 1 process, not {self.processes}")

    @property
    def streams(self) -> bool:
        """Whether tokens queue, or leave in groups: each delivery then has an instant of its own."""
        return self.output_token_s > 0 or self.stream_interval > 1

    @property
    def takes_in(self) -> bool:
        """Whether requests queue on their way in."""
        return self.input_token_s > 0 or self.request_s > 0

    @property
    def delays(self) -> bool:
        return self.request_latency_s > 0 or self.response_latency_s > 0 or self.streams

    def from_client(self, latency_s: float) -> FrontendTimes:
        """The same as a client sees it that is `latency_s` away, there and back together: half of it each way."""
        return replace(
            self,
            request_latency_s=self.request_latency_s + latency_s / 2,
            response_latency_s=self.response_latency_s + latency_s / 2,
        )


class FrontEndProcess:
    """One process, first come, first served: what it is given at an instant begins when all before it is done.

    Instants must not fall. `busy_ps` is the work given so far.
    """

    def __init__(self, times: FrontendTimes) -> None:
        self._input_token_s = times.input_token_s
        self._message_ps = picoseconds(times.output_token_s)
        self._request_ps = picoseconds(times.request_s)
        self._turn_ends_ps = 0
        self.last_taken_in_ps = 0  # when it will be done with the request that came last
        self._now_ps = 0
        self.free_ps = 0  # when it will have done all that it was given
        self.busy_ps = 0

    def take_in(self, prompt_tokens: int, now_ps: int) -> int:
        """A request has come; returns when its prompt is tokenized and goes to the engine.

        Before `last_taken_in_ps`, it is when its turn begins: `next_turn` then says when that ends.
        """
        work_ps = picoseconds(prompt_tokens * self._input_token_s) + self._request_ps
        self.last_taken_in_ps = self._serve(work_ps, now_ps)
        if self._turn_ends_ps <= now_ps or not self._request_ps:
            self._turn_ends_ps = self.last_taken_in_ps
        return self._turn_ends_ps

    def next_turn(self, now_ps: int) -> int:
        """A turn is over; returns when the one ends in which it turns to all that have come."""
        if self._turn_ends_ps <= now_ps:
            self._turn_ends_ps = self.last_taken_in_ps
        return self._turn_ends_ps

    def send(self, now_ps: int) -> int:
        """The engine has made what one message holds; returns when it is sent."""
        return self._serve(self._message_ps, now_ps)

    def _serve(self, work_ps: int, now_ps: int) -> int:
        assert now_ps >= self._now_ps, "the front end is told of what happens in order of time"
        self._now_ps = now_ps
        self.busy_ps += work_ps
        self.free_ps = max(self.free_ps, now_ps) + work_ps
        return self.free_ps


class FrontEndProcesses:
    """Equal processes before one engine; a request, by its number, stays with one in turn, as connections do."""

    def __init__(self, times: FrontendTimes, prompt_tokens: Sequence[int]) -> None:
        self.times = times
        self._prompt_tokens = prompt_tokens
        self._processes = [FrontEndProcess(times) for _ in range(times.processes)]
        self._waiting: set[int] = set()  # requests whose turn has not begun

    def process_of(self, request: int) -> FrontEndProcess:
        """The process of a request."""
        return self._processes[request % len(self._processes)]

    def take_in(self, request: int, now_ps: int) -> int:
        """A request has come; returns when it goes to the engine, or when to ask `goes_on` about it."""
        process = self.process_of(request)
        at_ps = process.take_in(self._prompt_tokens[request], now_ps)
        if at_ps < process.last_taken_in_ps:
            self._waiting.add(request)
        return at_ps

    def goes_on(self, request: int, now_ps: int) -> int:
        """When a request goes to the engine of which `take_in` has said this instant: now, or at its turn's end."""
        if request not in self._waiting:
            return now_ps
        self._waiting.remove(request)
        return self.process_of(request).next_turn(now_ps)

    def send(self, request: int, now_ps: int) -> int:
        """The engine has made a message of this request; returns when it is sent."""
        return self.process_of(request).send(now_ps)
