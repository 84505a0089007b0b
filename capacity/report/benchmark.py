"""The benchmark command that checks a plan: `vllm bench serve` with the arrivals of the plan or of a trace."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.deployment.command_words import PORT, Launch, flag_words
from capacity.workload.slo import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomArrivals:
    """Randomly generated requests: their number, rate (infinite: all at once), and mean lengths in tokens."""

    requests: int
    request_rate_per_s: float
    input_tokens: float
    output_tokens: float
    burstiness: float = 1.0
    range_ratio: float = 0.0
    prefix_tokens: int = 0
    max_concurrency: int | None = None  # limit on requests in flight (closed loop)

    @property
    def flags(self) -> list[str]:
        """Return the flags of `vllm bench serve` that generate these requests."""
        rate = "inf" if math.isinf(self.request_rate_per_s) else f"{self.request_rate_per_s:g}"
        return flag_words(
            [
                ("--dataset-name", "random"),
                ("--random-input-len", round(self.input_tokens)),
                ("--random-output-len", max(round(self.output_tokens), 1)),
                ("--random-range-ratio", self.range_ratio or None),
                ("--random-prefix-len", self.prefix_tokens or None),
                ("--request-rate", rate),
                ("--burstiness", None if self.burstiness == 1 else f"{self.burstiness:g}"),
                ("--max-concurrency", self.max_concurrency),
                ("--num-prompts", self.requests),
                ("--ignore-eos", True),
            ]
        )


def bench_command(
    model_id: str,
    arrivals: RandomArrivals | str,
    *,
    slos: Sequence[Slo],
    port: int = PORT,
    result: str | None = None,
    metadata: Sequence[tuple[str, object]] = (),
) -> Launch:
    """Return the `vllm bench serve` command for these arrivals; the benchmark writes its results to the file `result`.

    `arrivals`: random arrivals, or the flags of a timed trace as `write_timed_trace` returns them.
    """
    limits = [f"{slo.metric}:{slo.limit_s * 1e3:g}" for slo in slos if slo.applies_to_requests]
    words = ["vllm", "bench", "serve", "--model", model_id, "--base-url", f"http://localhost:{port}"]
    notes = ("set PYTHONHASHSEED to get identical prompts in every run",) if isinstance(arrivals, str) else ()
    words += shlex.split(arrivals) if isinstance(arrivals, str) else arrivals.flags
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    words += ["--goodput", *limits] if limits else []
    words += ["--save-result", "--save-detailed", *flag_words([("--result-filename", result)])]
    words += ["--metadata", *(f"{key}={value}" for key, value in metadata)] if metadata else []
    return Launch(words=tuple(words), notes=notes)
