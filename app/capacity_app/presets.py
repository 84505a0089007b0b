"""Examples to begin with: links relative to any page, with the widgets that are not at their defaults."""

from __future__ import annotations

PRESETS = {
    "8B chat on one H100": "estimate?",
    "70B chat on four H100": "estimate?model=llama-3.1-70b&tp=4&batch=32",
    "DeepSeek-V3 on eight H200": "fit?model=deepseek-v3&gpu=h200-sxm-141gb&tp=8&ep=true&kv=fp8",
    "gpt-oss-120b with long documents": "fit?model=gpt-oss-120b&gpu=h200-sxm-141gb&isl=32000&osl=1000",
    "Qwen3-32B in FP8 for retrieval": (
        "estimate?model=qwen3-32b&gpu=h200-sxm-141gb&weights=fp8&isl=8000&osl=300"
    ),
    "Static against continuous batching": "simulate?rate=10&sim_beside=static+batching",
    "Conversations behind a prefix-aware router": (
        "simulate?sim_arrivals=conversations&sim_replicas=4&sim_router=prefix-aware&rate=8"
    ),
    "A GPU of one's own or an API": "cost?model=llama-3.3-70b&tp=4",
    "What each technique is worth on an 8B": "stack?",
    "An 8B before a 70B": "cascade?model=llama-3.1-70b&tp=4&rate=20&casc_model=llama-3.1-8b",
    "L40S for short prompts, H100 for long ones": "fleet?rate=40&fleet_cv=2&fleet_ttft=500",
    "MTP for DeepSeek-V3": "speculation?model=deepseek-v3&gpu=h200-sxm-141gb&tp=8&spec_method=mtp&spec_batch=1",
}
