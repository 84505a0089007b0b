"""One-line description of an answer (model, GPUs, engine, lengths, load) for exported charts and printed pages."""

from typing import Any

LOADS = {
    "batch_size": "batch of {:,.0f} requests",
    "concurrency": "closed loop of {:,.0f} requests",
    "request_rate": "{:g} requests/s",
}


def describe_answer(answer: Any) -> str:
    """Return `llama-3.1-70b, 4 x h100-sxm-80gb, vllm@0.33, bf16 weights, 1,024 tokens in, 256 out, 4 requests/s`."""
    named, model, engine, weights, input_len, workload = (
        getattr(answer, name, None)
        for name in ("deployment", "model", "engine", "weight_format", "input_len", "workload")
    )
    words = [
        named or getattr(model, "name", model),
        _gpu_text(answer),
        engine,
        weights and f"{weights} weights",
        input_len is not None and f"{input_len:,} tokens in, {answer.output_len:,} out",
        load_text(answer),
        workload and f"workload: {workload}",
    ]
    return ", ".join(str(word) for word in words if word)


def load_text(answer: Any) -> str:
    """Return the load of an answer as text: `batch of 8 requests`, or `4 requests/s, at most 8 in flight`."""
    loads = {name: getattr(answer, name, None) for name in LOADS}
    if (field := getattr(answer, "load_field", None)) is not None:
        loads[field] = answer.load
    if loads["batch_size"] == 1:
        return "single request"
    given = [LOADS[name].format(load) for name, load in loads.items() if load is not None]
    if len(given) == 2:
        return f"{loads['request_rate']:g} requests/s, at most {loads['concurrency']:,} in flight"
    return "".join(given)


def _gpu_text(answer: Any) -> str:
    """Return the number and name of the GPUs; empty for an answer that lists several GPUs."""
    gpu = getattr(answer, "gpu", None)
    if isinstance(gpu, str):
        return f"{getattr(answer, 'num_gpus', 1)} x {gpu}"
    return "" if gpu is None else f"{gpu.count} x {gpu.name}"


def gpu_names(answer: Any) -> tuple[str, ...]:
    """Return the names of the GPU profiles in an answer, without duplicates."""
    gpu = getattr(answer, "gpu", None)
    found = [] if gpu is None else [str(getattr(gpu, "name", gpu))]
    for field in ("rows", "lines", "ranked", "tiers"):
        found += [name for row in getattr(answer, field, ()) if (name := _row_gpu(row))]
    return tuple(dict.fromkeys(found))


def _row_gpu(row: Any) -> str:
    pools = getattr(getattr(row, "candidate", None), "pools", ())
    gpu = getattr(row, "gpu", None) or (pools[0].gpu if pools else None)
    return gpu if isinstance(gpu, str) and getattr(row, "reason", None) is None else ""
