"""What an answer is of, in a line: model, GPUs, engine, lengths, load. Copies of a chart and printed pages carry it."""

from __future__ import annotations

from typing import Any

LOADS = (
    ("batch_size", "{:,.0f} requests together"),
    ("concurrency", "{:,.0f} in flight"),
    ("request_rate", "{:g} requests/s"),
)


def subject_of(answer: Any) -> str:
    """`llama-3.1-70b, 4 x h100-sxm-80gb, vllm@0.33, bf16 weights, 1,024 tokens in, 256 out, 32 in flight`."""

    def said(name: str) -> Any:
        return getattr(answer, name, None)

    weights = said("weight_format")
    words = [said("deployment") or _model(said("model")), *_gpus(answer)]
    words += [said("engine"), weights and f"{weights} weights"]
    if said("input_len") is not None:
        words.append(f"{said('input_len'):,} tokens in, {said('output_len'):,} out")
    loads = {name: said(name) for name, _ in LOADS}
    if said("load_field") is not None:
        loads = {said("load_field"): said("load")}
    alone = loads.get("batch_size") == 1
    words += [
        "1 request alone" if alone else form.format(loads[name])
        for name, form in LOADS
        if loads.get(name) is not None
    ]
    workload = said("workload")
    words.append(workload and f"workload: {workload}")
    return ", ".join(str(word) for word in words if word)


def _model(model: Any) -> str:
    return "" if model is None else str(getattr(model, "name", model))


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
