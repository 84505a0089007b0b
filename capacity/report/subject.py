"""One-line description of an answer (model, GPUs, engine, lengths, load) for copied charts and printed pages."""

from __future__ import annotations

from typing import Any

LOADS = {  # at length, and in short
    "batch_size": ("{:,.0f} requests together", "{:,.0f} requests together"),
    "concurrency": ("{:,.0f} requests in flight, closed loop", "{:,.0f} in flight"),
    "request_rate": ("{:g} requests/s arrive", "{:g} requests/s"),
}


def subject_of(answer: Any) -> str:
    """`llama-3.1-70b, 4 x h100-sxm-80gb, vllm@0.33, bf16 weights, 1,024 tokens in, 256 out, 32 in flight`."""

    def field(name: str) -> Any:
        return getattr(answer, name, None)

    weights = field("weight_format")
    model = field("model")
    words = [field("deployment") or getattr(model, "name", model), *_gpus(answer)]
    words += [field("engine"), weights and f"{weights} weights"]
    if field("input_len") is not None:
        words.append(f"{field('input_len'):,} tokens in, {field('output_len'):,} out")
    words.append(load_text(answer, short=True))
    workload = field("workload")
    words.append(workload and f"workload: {workload}")
    return ", ".join(str(word) for word in words if word)


def load_text(answer: Any, *, short: bool = False) -> str:
    """Return how many requests there are: `8 requests together`, `4 requests/s arrive, at most 8 in flight`."""
    loads = {name: getattr(answer, name, None) for name in LOADS}
    if (field := getattr(answer, "load_field", None)) is not None:
        loads[field] = answer.load
    if loads["batch_size"] == 1:
        return "1 request alone"
    given = {name: LOADS[name][short].format(load) for name, load in loads.items() if load is not None}
    if len(given) == 2 and not short:
        return f"{given['request_rate']}, at most {loads['concurrency']:,} in flight"
    return ", ".join(given.values())


def _gpus(answer: Any) -> list[str]:
    """The GPUs of a deployment; a table of many names them itself."""
    gpu = getattr(answer, "gpu", None)
    if gpu is None:
        return []
    if isinstance(gpu, str):
        return [f"{getattr(answer, 'num_gpus', 1)} x {gpu}"]
    return [f"{gpu.count} x {gpu.name}"]


def gpu_names(answer: Any) -> tuple[str, ...]:
    """The GPU profiles that an answer speaks of, each once."""
    gpu = getattr(answer, "gpu", None)
    found = [] if gpu is None else [str(getattr(gpu, "name", gpu))]
    for field in ("rows", "lines", "ranked", "tiers"):
        found += [name for row in getattr(answer, field, ()) if (name := _name_of_row(row))]
    return tuple(dict.fromkeys(found))


def _name_of_row(row: Any) -> str:
    pools = getattr(getattr(row, "candidate", None), "pools", ())
    gpu = getattr(row, "gpu", None) or (pools[0].gpu if pools else None)
    return gpu if isinstance(gpu, str) and getattr(row, "reason", None) is None else ""
