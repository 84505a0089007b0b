"""Front-end processes: tokenization, detokenization and streaming as a single-server queue.

vLLM V1 does all three in the process of its API server, because a separate process was slower (pull request 11636);
`--api-server-count` starts several API servers (pull request 17546). SGLang takes requests, tokenizes and streams in
one TokenizerManager, which "may encounter single-core bottlenecks under high-concurrency" (issue 6553);
`--tokenizer-worker-num` starts several. Incoming requests and outgoing tokens therefore wait for each other, first
come, first served. Each process sends at most 1 / `output_token_s` tokens per second, independent of the number of
GPUs: TensorRT-LLM 1.0.0rc3 streams 7.4, 8.9 and 9.2 thousand tokens/s of Llama-3.1-8B to 128 clients from 2, 4 and 8
H100 (gap-analysis rows, 1,024 + 256 tokens). Its TTFT grows with the length of the answers (0.7 s, 1.1 s, 2.0 s for
128, 256 and 512 tokens), because first tokens queue behind the tokens of other answers.

The fixed cost per request, `request_s`, belongs to the event loop. In one turn, the loop processes all requests that
have arrived, one after another, and passes them on only at the end of the turn. So if a thousand requests arrive at
once, none reaches the engine before nearly all of them are processed.

Not modelled: the order in which the event loop sends tokens that are ready at the same time, processes that compete for
cores, and the longer time of a message with several tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from capacity.base.errors import InvalidInput
from capacity.step import picoseconds
from capacity.workload.columns import FloatArray

Tokens = TypeVar("Tokens", float, FloatArray)

# Seconds per chat request in vLLM 0.11.0, which parses the model's chat template again for each request (pull request
# 25794, `resolve_chat_template_kwargs` in the wheel; 0.11.1 caches the result). Measured: 9.3 ms for the 4,101
# characters of Qwen3's template (jinja2 3.1.6, AMD EPYC, 2026-11). In bursts of 1,000 requests, first tokens of
# DeepSeek-R1 and GLM-4.5-Air came 13.6 s later than from the engine (gpustack performance-lab; the value was chosen
# with those two runs known).
CHAT_TEMPLATE_S = 0.014


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendTimes:
    """Times (s) of the path between client and engine; if all are zero, the client sends directly to the scheduler."""

    request_latency_s: float = 0.0
    response_latency_s: float = 0.0
    output_token_s: float = 0.0
    stream_interval: int = 1
    input_token_s: float = 0.0
    request_s: float = 0.0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InvalidInput(f"a front end needs at least 1 process, not {self.processes}")

    @property
    def streams(self) -> bool:
        """Whether the delivery time of each token must be computed, because tokens queue or are sent in groups."""
        return self.output_token_s > 0 or self.stream_interval > 1

    @property
    def queues_requests(self) -> bool:
        """Whether incoming requests queue in the front end."""
        return self.input_token_s > 0 or self.request_s > 0

    @property
    def delays(self) -> bool:
        return self.request_latency_s > 0 or self.response_latency_s > 0 or self.streams

    def work_s(self, prompt_tokens: Tokens) -> Tokens:
        """Return the CPU time (s) until requests with `prompt_tokens` prompt tokens are passed on to the engine."""
        return self.request_s + prompt_tokens * self.input_token_s

    def add_client_latency(self, latency_s: float) -> "FrontendTimes":
        """Return these times plus `latency_s` of round-trip network latency, half of it in each direction."""
        return replace(
            self,
            request_latency_s=self.request_latency_s + latency_s / 2,
            response_latency_s=self.response_latency_s + latency_s / 2,
        )


class FrontEndProcess:
    """One front-end process; it works first come, first served.

    Calls must be in time order. `busy_ps` is the total work so far.
    """

    def __init__(self, times: FrontendTimes) -> None:
        self._input_token_s = times.input_token_s
        self._message_ps = picoseconds(times.output_token_s)
        self._request_ps = picoseconds(times.request_s)
        self._turn_ends_ps = 0
        self.last_taken_in_ps = 0  # when the last request is taken in
        self._now_ps = 0
        self.free_ps = 0  # when all work given so far is done
        self.busy_ps = 0

    def take_in(self, prompt_tokens: int, now_ps: int) -> int:
        """Queue a request for tokenization; return the time (ps) at which the process sends it to the engine.

        If the returned time is before `last_taken_in_ps`, it is the end of the turn of the event loop that is now
        running, and the request is processed in the next turn: call `next_turn` at the returned time.
        """
        work_ps = picoseconds(prompt_tokens * self._input_token_s) + self._request_ps
        self.last_taken_in_ps = self._serve(work_ps, now_ps)
        if self._turn_ends_ps <= now_ps or not self._request_ps:
            self._turn_ends_ps = self.last_taken_in_ps
        return self._turn_ends_ps

    def next_turn(self, now_ps: int) -> int:
        """Start an event-loop turn with all arrived requests, unless a turn runs; return when the turn ends (ps)."""
        if self._turn_ends_ps <= now_ps:
            self._turn_ends_ps = self.last_taken_in_ps
        return self._turn_ends_ps

    def send(self, now_ps: int) -> int:
        """Queue a message that the engine produced at `now_ps`; return when it is sent."""
        return self._serve(self._message_ps, now_ps)

    def _serve(self, work_ps: int, now_ps: int) -> int:
        assert now_ps >= self._now_ps, "calls of the front end must be in time order"
        self._now_ps = now_ps
        self.busy_ps += work_ps
        self.free_ps = max(self.free_ps, now_ps) + work_ps
        return self.free_ps


class FrontEndProcesses:
    """Identical processes for one engine; requests are assigned round-robin by number, as connections are."""

    def __init__(self, times: FrontendTimes, prompt_tokens: Sequence[int]) -> None:
        self.times = times
        self._prompt_tokens = prompt_tokens
        self._processes = [FrontEndProcess(times) for _ in range(times.processes)]
        self._waiting: set[int] = set()  # requests whose turn has not begun

    def process_of(self, request: int) -> FrontEndProcess:
        return self._processes[request % len(self._processes)]

    def take_in(self, request: int, now_ps: int) -> int:
        """Queue a request at its process; return when to call `engine_arrival_ps` for it."""
        process = self.process_of(request)
        at_ps = process.take_in(self._prompt_tokens[request], now_ps)
        if at_ps < process.last_taken_in_ps:
            self._waiting.add(request)
        return at_ps

    def engine_arrival_ps(self, request: int, now_ps: int) -> int:
        """Return when a request goes to the engine (ps). Call it at the time that `take_in` returned."""
        if request not in self._waiting:
            return now_ps
        self._waiting.remove(request)
        return self.process_of(request).next_turn(now_ps)

    def send(self, request: int, now_ps: int) -> int:
        return self.process_of(request).send(now_ps)
