"""A tiny package `vllm` on disk, with a scheduler worked by hand, for tests of the pipe to the scheduler of a vLLM.

It starts requests first come, first served, while their prompts fit the budget, and never preempts. Real vLLMs are
compared in `test_installed_vllm.py` where one is.
"""

from __future__ import annotations

from pathlib import Path

SCHEDULER = """
from types import SimpleNamespace

class Scheduler:
    def __init__(self, vllm_config, kv_cache_config, structured_output_manager, block_size, log_stats):
        self.limits, self.block_size = vllm_config.scheduler_config, block_size
        self.running, self.waiting, self.requests = [], [], {}
        self.free = kv_cache_config.num_blocks - 1
        self.kv_cache_manager = SimpleNamespace(block_pool=SimpleNamespace(get_num_free_blocks=lambda: self.free))

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def get_num_unfinished_requests(self):
        return len(self.running) + len(self.waiting)

    def take(self, request, tokens):
        blocks = -(-(request.num_computed_tokens + tokens) // self.block_size)
        self.free -= blocks - request.blocks
        request.blocks = blocks
        request.num_computed_tokens += tokens

    def schedule(self):
        budget, rows, new = self.limits.max_num_batched_tokens, {}, []
        computed = {request.request_id: request.num_computed_tokens for request in self.running}
        for request in self.running:
            rows[request.request_id] = 1
            self.take(request, 1)
        while self.waiting and self.waiting[0].num_tokens + sum(rows.values()) <= budget:
            request = self.waiting.pop(0)
            new.append(SimpleNamespace(req_id=request.request_id, num_computed_tokens=0))
            rows[request.request_id] = request.num_tokens
            self.take(request, request.num_tokens)
            self.running.append(request)
        return SimpleNamespace(
            num_scheduled_tokens=rows, scheduled_new_reqs=new, scheduled_spec_decode_tokens={},
            scheduled_cached_reqs=SimpleNamespace(req_ids=list(computed), num_computed_tokens=list(computed.values())),
        )

    def update_from_output(self, output, result):
        for name, tokens in zip(result.req_ids, result.sampled_token_ids):
            request = self.requests[name]
            request.tokens += tokens
            if request.is_finished():
                self.finish_requests(name, None)

    def finish_requests(self, name, status):
        request = self.requests.pop(name)
        request.status = "FINISHED"
        self.free += request.blocks
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
"""
REQUEST = """
class RequestStatus:
    PREEMPTED, FINISHED_ABORTED = "PREEMPTED", "FINISHED_ABORTED"

class Request:
    is_prefill_chunk, status = False, "RUNNING"

    def __init__(self, request_id, prompt_token_ids, sampling_params, **others):
        self.request_id, self.tokens, self.prompt = request_id, list(prompt_token_ids), len(prompt_token_ids)
        self.max_tokens, self.num_computed_tokens, self.blocks = sampling_params["max_tokens"], 0, 0

    num_tokens = property(lambda self: len(self.tokens))
    num_output_tokens = property(lambda self: len(self.tokens) - self.prompt)

    def is_finished(self):
        return self.status == "FINISHED" or self.num_output_tokens >= self.max_tokens
"""
CONFIG = """
from dataclasses import dataclass

@dataclass
class SchedulerConfig:
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
"""
KEPT = "class {}:\n    def __init__(self, *values, **named):\n        self.__dict__.update(named)\n"
FILES = {
    "torch.py": "float32 = 'float32'\n",
    "vllm/config.py": CONFIG,
    "vllm/sampling_params.py": "SamplingParams = dict\n",
    "vllm/utils/hashing.py": "sha256 = hash\n",
    "vllm/v1/core/sched/scheduler.py": SCHEDULER,
    "vllm/v1/core/sched/async_scheduler.py": "from vllm.v1.core.sched.scheduler import Scheduler as AsyncScheduler\n",
    "vllm/v1/core/kv_cache_utils.py": "init_none_hash = get_request_block_hasher = lambda *values: None\n",
    "vllm/v1/kv_cache_interface.py": "".join(
        map(KEPT.format, ("KVCacheConfig", "KVCacheGroupSpec", "FullAttentionSpec", "SlidingWindowSpec"))
    ),
    "vllm/v1/outputs.py": "".join(map(KEPT.format, ("ModelRunnerOutput", "DraftTokenIds"))),
    "vllm/v1/request.py": REQUEST,
}


def write_stand_in(folder: Path, version: str = "0.33.0", **changed: str) -> Path:
    """Write the package; `changed`: other text of a file, by its name without folder and ending."""
    files = {"vllm/__init__.py": f"print('vLLM talks')\n__version__ = {version!r}\n", **FILES}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.stem, text))
    return folder
