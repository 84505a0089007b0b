"""The objects that the entry points of pyproject.toml name."""

import random
from bisect import insort
from pathlib import Path

from capacity.base.registry import Answer, Verb
from capacity.deployment.routing import Prompt, Router
from capacity.simulator.schedulers import Sequence
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.workload.traces.table import CsvSchema, table_format

DATA = Path(__file__).with_name("data")


class TwoChoices(Router):
    """The better of two replicas drawn at random."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._draws = random.Random(seed)

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        return min(self._draws.choices(self.ready, k=2), key=lambda replica: self.requests[replica])


class ShortestFirst(VllmV1):
    """vLLM's scheduler with waiting requests in the order of their prompt lengths."""

    def add(self, sequence: Sequence) -> bool:
        insort(self.waiting, sequence, key=lambda waiting: waiting.prompt_tokens)
        return True


OWN_GPU = (
    DATA / "own-gpu.toml"
)  # a GPU profile, as `capacity gpus add` writes it; the file has the profile's name
OWN_MODEL = DATA / "own-model.json"  # a Hugging Face config.json
OWN_LOG = table_format(
    CsvSchema(
        name="own-log",
        title="own CSV log",
        arrival="received_s",
        prompt="tokens_in",
        output="tokens_out",
        from_first=True,
    )
)
TOKENS_PER_DOLLAR = Verb(
    "tokens-per-dollar",
    "Compute output tokens per dollar at full load.",
    function="capacity_template.tokens_per_dollar:tokens_per_dollar",
    answers=(Answer("tokens-per-dollar", "capacity_template.tokens_per_dollar:TokensPerDollar"),),
    first="gpu input-len output-len batch-size price format",
)
