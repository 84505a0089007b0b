"""The techniques' verbs of the command line: parse, ask `capacity.techniques.questions`, print."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from capacity.base.errors import InvalidInput
from capacity.base.keywords import split
from capacity.base.spec import Spec
from capacity.cli.options import FormatOption, ModelArgument, check_format, show, write
from capacity.cli.verbs import verb
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, build

CONTEXTS = "4K,32K,128K,1M"
ARRIVALS = tuple(name for name in Traffic.model_fields if name not in ("batch_size", "scheduling"))

InputOption = Annotated[int, typer.Option("--input-len", "--isl", help="Prompt tokens of a request.")]
OutputOption = Annotated[int, typer.Option("--output-len", "--osl", help="Output tokens of a request.")]
ContextsOption = Annotated[str, typer.Option("--contexts", help="Tokens, as 4K,32K,128K,1M.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the `capacity` command."""
    verb(app, Pool, Cost)(quantize)
    verb(app, Pool)(speculate)
    verb(app, Pool, Cost)(scale)
    verb(app, Pool)(attention_io)
    verb(app, Pool, Traffic, traffic_fields=ARRIVALS)(batching)
    verb(app, Pool)(charts)
    app.command(name="kv")(kv)
    app.command(name="cache-curve")(cache_curve)
    app.command(name="engines")(engines)


def quantize(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    input_len: InputOption = 1024,
    output_len: OutputOption = 256,
    large_batch: Annotated[int, typer.Option("--large-batch", help="Batch of the second TPOT.")] = 64,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; may be repeated.")
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Which way to quantize? Memory, batch, latency, cost and published quality of each, side by side."""
    from capacity.techniques import questions as api

    _check(options, Pool, Cost)
    answer = api.quantize(
        model,
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        methods=method,
        **options,
    )
    _show(answer, format)


def speculate(
    *,
    model: Annotated[str | None, typer.Argument(help="The target model.", show_default=False)] = None,
    options: dict[str, Any],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="draft-model, self-draft, ngram, medusa, eagle, eagle2, eagle3, mtp; default: eagle3.",
        ),
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="The draft model, for draft-model.")] = None,
    draft_tokens: Annotated[
        int | None, typer.Option("--draft-tokens", "-k", help="Drafts of a round; default: the method's.")
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree/--no-tree", help="Verify the method's tree, or a chain.")
    ] = True,
    context: Annotated[
        int, typer.Option("--context-tokens", "--context", help="Tokens of context of each request.")
    ] = 1024,
    batch_sizes: Annotated[
        str, typer.Option("--batches", "--batch-sizes", help="As 1,4,16.")
    ] = "1,4,16,64,256",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also a closed loop of each batch through the scheduler.")
    ] = False,
    textbook: Annotated[
        bool, typer.Option("--textbook", help="Only a published textbook table, beside the formulas.")
    ] = False,
    methods: Annotated[
        bool, typer.Option("--list", help="Only the ways to draft, with their published acceptance.")
    ] = False,
    format: FormatOption = "table",
) -> None:
    """Does speculative decoding pay, with how many drafts, up to which batch?"""
    from capacity.techniques import questions as api

    if textbook or methods:
        _show(api.textbook() if textbook else api.speculation_methods(), format)
        return
    if model is None:
        raise InvalidInput("no model: name one (`capacity models` lists them), or give --textbook or --list")
    _check(options, Pool)
    answer = api.speculate(
        model,
        method=method,
        draft=draft,
        draft_tokens=draft_tokens,
        tree=tree,
        context_tokens=context,
        batches=token_list(batch_sizes, "--batch-sizes"),
        simulate=simulate,
        **options,
    )
    _show(answer, format)


def scale(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    input_len: InputOption = 1024,
    output_len: OutputOption = 256,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests in flight.")] = 32,
    axis: Annotated[str, typer.Option("--axis", help="tensor, pipeline, expert or data.")] = "tensor",
    most_gpus: Annotated[int, typer.Option("--most-gpus", help="Largest group tried.")] = 8,
    tpot: Annotated[
        float | None, typer.Option("--tpot", help="Also the cheapest that meets this TPOT, in ms.")
    ] = None,
    format: FormatOption = "table",
) -> None:
    """What do more GPUs buy? Latency, throughput per GPU and efficiency along one axis of parallelism."""
    from capacity.techniques import questions as api

    _check(options, Pool, Cost)
    if tpot is not None and not 0 < tpot < float("inf"):
        raise InvalidInput(f"--tpot {tpot}: must be above 0 ms")
    answer = api.scale(
        model,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        axis=axis,
        most_gpus=most_gpus,
        tpot_s=None if tpot is None else tpot / 1e3,
        **options,
    )
    _show(answer, format)


def attention_io(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    contexts: ContextsOption = "1K,4K,16K,64K",
    format: FormatOption = "table",
) -> None:
    """What does FlashAttention save? HBM traffic and memory of naive and tiled attention, and the measured kernel."""
    from capacity.techniques import questions as api

    _check(options, Pool)
    _show(api.attention_traffic(model, contexts=token_list(contexts, "--contexts"), **options), format)


def batching(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Most requests in a batch; default: max_num_seqs.")
    ] = None,
    batching_window: Annotated[
        float, typer.Option("--batching-window", help="Seconds that a static batch waits for members.")
    ] = 0.1,
    spread: Annotated[
        bool, typer.Option("--spread/--no-spread", help="Also the gain by the spread of output lengths.")
    ] = True,
    chart: Annotated[str | None, typer.Option("--chart", help="Also write an HTML chart.")] = None,
    format: FormatOption = "table",
) -> None:
    """What does continuous batching gain, by the spread of lengths in closed form, and on these arrivals?"""
    from capacity.techniques import questions as api

    _check(options, Pool, Traffic)
    answer = api.compare_batching(
        model, max_batch=batch_size, batching_window_s=batching_window, spread=spread, **options
    )
    if chart:
        from capacity.report.figures.batching import batching_chart

        write(chart, batching_chart(answer).html())
    _show(answer, format)


def charts(
    *,
    model: ModelArgument,
    options: dict[str, Any],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the SVG files.")] = "charts",
) -> None:
    """The handbook's charts for your model and GPU, as SVG files."""
    from capacity.pool.resolve import resolve
    from capacity.techniques.handbook_charts import write_charts

    (pool,) = _check(options, Pool)
    for path in write_charts(resolve(model, pool), output):
        sys.stdout.write(f"{path}\n")


def kv(
    models: Annotated[list[str], typer.Argument(help="One or more models.")],
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", help="Also the context that this GPU holds; may be repeated.")
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option("--kv-cache-dtype", help="auto, fp8, int8, int4, ...")
    ] = "auto",
    contexts: ContextsOption = CONTEXTS,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Of the decode step in which attention overtakes.", min=1)
    ] = 32,
    window: Annotated[
        int | None,
        typer.Option(
            "--window", help="Also attention limited to windows, sinks or chunks of so many.", min=1
        ),
    ] = None,
    sinks: Annotated[int, typer.Option("--sinks", help="First tokens kept besides the window.", min=0)] = 4,
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "-tp", min=1)] = 1,
    quantization: Annotated[str | None, typer.Option("--quantization", "-q", help="Weight format.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="Engine, with an optional version.")] = "vllm",
    format: FormatOption = "table",
) -> None:
    """How large is the KV cache? Per token and per request, by kind of attention, and what each GPU holds."""
    from capacity.techniques import questions as api

    answer = api.kv(
        models,
        gpus=gpu or [],
        kv_cache_dtype=kv_cache_dtype,
        contexts=token_list(contexts, "--contexts"),
        batch_size=batch_size,
        window_tokens=window,
        sink_tokens=sinks,
        tensor_parallel_size=tensor_parallel_size,
        quantization=quantization,
        engine=engine,
    )
    _show(answer, format)


def cache_curve(
    trace: Annotated[
        str, typer.Argument(help="A trace with block hashes (Mooncake, Qwen-Bailian); -: stdin.")
    ],
    capacity_tokens: Annotated[
        str, typer.Option("--capacity-tokens", help="Cache sizes, as 64K,1M,16M.")
    ] = "64K,256K,1M,4M,16M,64M",
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", help="Tokens of a block; default: the trace's.", min=1)
    ] = None,
    as_engine: Annotated[
        bool, typer.Option("--as-engine", help="As vLLM caches: full blocks only, answers included.")
    ] = False,
    replicas: Annotated[
        int, typer.Option("--replicas", help="Also hit rates by routing over so many.", min=1)
    ] = 1,
    model: Annotated[
        str | None, typer.Option("--model", help="Also what this model saves, with --gpu.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="The GPU that serves --model.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "-tp", min=1)] = 1,
    price: Annotated[str | None, typer.Option("--price", help="$ per GPU-hour of that GPU.")] = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", help="Only this provider's plan; may be repeated.")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", help="Only the first so many.", min=1)
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Does prefix caching pay? Hit rate at every cache size, by routing, and the bill under providers' caches."""
    from capacity.techniques import questions as api

    if (model is None) != (gpu is None):
        raise InvalidInput("--model and --gpu belong together: give both or neither")
    if price is not None and model is None:
        raise InvalidInput("--price is of a GPU: add --model and --gpu")
    served_by = None
    if model is not None:
        pool = {"gpu": gpu, "tensor_parallel_size": tensor_parallel_size}
        served_by = (model, build(Pool, pool, flags=True))
    answer = api.cache_curve(
        trace,
        block_tokens=block_tokens,
        capacities_tokens=token_list(capacity_tokens, "--capacity-tokens"),
        as_engine=as_engine,
        replicas=replicas,
        limit=num_prompts,
        served_by=served_by,
        price=price,
        plans=plan,
    )
    _show(answer, format)


def engines(
    gpu: Annotated[str, typer.Option("--gpu", help="Defaults depend on its memory.")] = "h100",
    claims: Annotated[
        bool, typer.Option("--claims", help="Also published speed claims, held against physics.")
    ] = False,
    format: FormatOption = "table",
) -> None:
    """The serving engines, with the defaults, limits and overheads that the simulator takes."""
    from capacity.techniques import questions as api

    _show(api.engine_table(gpu, claims=claims), format)


def explain_term(term: str, request: DeploymentFile | None, format: str) -> None:
    """Print what a term means, with the numbers of a deployment where one is given."""
    from capacity.answers.estimate import estimate_of
    from capacity.hardware.pricing import price_of
    from capacity.pool.resolve import resolve
    from capacity.techniques.glossary import Situation, define

    situation = None
    if request is not None:
        pool = resolve(request.model, request.pools[0])
        price = price_of(pool.profile.name, request.cost)
        situation = Situation(pool=pool, estimate=estimate_of(pool, request.traffic, price))
    definition = define(term, situation)
    if format == "table":
        sys.stdout.write(f"{definition.term}: {definition.definition}\n")
        if definition.yours is not None:
            sys.stdout.write(f"Yours: {definition.yours}\n")
        return
    _show(
        {**definition.to_dict(), "rows": [definition.to_dict()]} if format == "csv" else definition.to_dict(),
        format,
    )


def token_list(written: str, flag: str) -> list[int]:
    """Whole numbers with K (1024) and M (1048576), by commas. Raises InvalidInput."""
    found = []
    for item in written.split(","):
        digits = item.strip().upper()
        scale = {"K": 1 << 10, "M": 1 << 20}.get(digits[-1:], 1)
        digits = digits[:-1] if scale > 1 else digits
        if not (digits.isascii() and digits.isdecimal()) or not 0 < int(digits) * scale <= 1 << 40:
            raise InvalidInput(f"{flag} {written!r}: give whole numbers above 0 by commas, as 4K,32K,1M")
        found.append(int(digits) * scale)
    return found


def _check(options: dict[str, Any], *specs: type[Spec]) -> list[Any]:
    """Each spec of the options that were given. Raises InvalidInput in the command line's words."""
    parts = split(options, *specs)
    if "gpu" not in parts[0]:
        raise InvalidInput("no GPU: add --gpu NAME (`capacity gpus` lists them)")
    return [build(spec, part, flags=True) for spec, part in zip(specs, parts, strict=True)]


def _show(answer: Any, format: str) -> None:
    from capacity.report.techniques import render_answer

    record = answer if isinstance(answer, Mapping) else answer.to_dict()
    show(render_answer(record, check_format(format)))
