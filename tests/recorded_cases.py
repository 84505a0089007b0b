"""Which commands and calls are recorded, and which of them the tests ask."""

from __future__ import annotations

from recorded_calls import CALLS
from recorded_commands import COMMANDS

SURFACE = "surface"  # the case of the public names themselves
CASES = (*COMMANDS, *CALLS, SURFACE)
BORROWED = {  # files of the checkout, for the cases that name them
    "cpu.jsonl": "validate/measurements/2026-11-21-cpu-quick.jsonl",
    "v0_named.jsonl.gz": "tests/data/oracle/v0_named.jsonl.gz",
    "v1_named.jsonl.gz": "tests/data/oracle/v1_named.jsonl.gz",
    "v1async_named.jsonl.gz": "tests/data/oracle/v1async_named.jsonl.gz",
}

# the quick ones of every kind, whose words are no other package's

SHORT_NAMES = """
    plan/cost plan/formats plan/engines plan/trace api/plan/text api/plan/unmet cost/api curve/slo tornado/plain
    fleet/three fleet/day written/fleet advise/plain
    diff/replicated sweep/grid quantize/plain speculate/simulated speculate/method/eagle3 kv/gpus
    scale/pipeline scale/data cache-curve/served cache-curve/engine attention-io/gemma-3-12b batching/rate
    engines/l4-claims compare/log charts/8b schedule/vllm-v0 schedule/vllm-v1-async schedule/radix
    fit/quantization/awq fit/quantization/q4_k_m fit/quantization-b200/nvfp4 fit/engine/trtllm fit/config/compressed
    estimate/preset/deepseek-v3 estimate/preset/gpt-oss-120b estimate/preset/qwen3-next-80b-a3b estimate/dp-moe
    estimate/gpu/mi300x-192gb estimate/price-instance explain/batch explain/term-of-a-model
    simulate/engine/vllm@0.6 simulate/engine/sglang simulate/engine/tgi simulate/engine/static simulate/option/pp
    simulate/scarce/preempted simulate/scarce/v0-swap simulate/scarce/trtllm simulate/offload/disk
    simulate/offload/lmcache simulate/drafts/eagle3 simulate/arrivals/sessions simulate/arrivals/clients
    simulate/trace/priorities simulate/trace/closed-chats simulate/service/autoscaled simulate/service/failures
    simulate/service/disaggregated-routers simulate/service/queue-limit simulate/ranks/lock-step-ep
    simulate/family-prefixes/gemma-3-12b simulate/family/qwen3-next-80b-a3b simulate/option/records
    simulate/file-mixed from-vllm/many written/simulate table/simulate refused/too-large refused/tp
    refused/trace/ragged.csv refused/misspelt-file api/simulate/levels api/diff/mapping api/fit/unknown-field
"""
SHORT = tuple(SHORT_NAMES.split())
