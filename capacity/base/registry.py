"""Every verb, declared once: its command, its Python function, its answers, their schemas, tables, charts and help.

This module imports nothing: functions, records and specs are named as `module:name` and imported when they are first
needed. A new verb is one `Verb` here, the function with its record, and the functions that show it.
"""

from typing import NamedTuple

ENGINE = "gpu tensor-parallel-size quantization kv-cache-dtype engine max-model-len"
LENGTHS = "input-len output-len"
LOAD = f"{LENGTHS} request-rate concurrency use-case num-prompts trace"
LLAMA = "llama-3.1-70b --gpu h100 -tp 4"
CHAT = "--input-len 1024 --output-len 256"

POOL, TRAFFIC, SERVICE, COST, BILLING, CASCADE = (
    f"capacity.deployment:{name}" for name in ("Pool", "Traffic", "Service", "Cost", "Billing", "Cascade")
)
SEARCH = "capacity.planning.space:Search"
SPLIT = "capacity.planning.fleets.fleet_space:Split"
ESTIMATED = "capacity.deployment:ESTIMATE_TRAFFIC"

PLACE = ("format", "deployment", "from_launch", "write_deployment", "profiles", "download")
MODEL_AND_PLACE = ("model", *PLACE)
OF_A_DEPLOYMENT = ("model", "deployment", "from_launch", "format", "profiles", "download")
COMPARED = ("model", "replicas", "compared_window", *OF_A_DEPLOYMENT[1:])
SEARCHED = ("output", "detail", "format", "profiles", "download")
STORED = ("deployment", "from_launch")
NO_ARRIVALS = ("batch_size", "scheduling")


class Answer(NamedTuple):
    """A record that a verb returns, by the name in its schema (`capacity/NAME/v1`), and the functions that show it.

    `view`: what is shown of it everywhere. Without one, `tables`: all tables; empty: made from the record's field
    names; `summary`: one screen, `sheet`: the tables of a printed page whose charts show the rest, `page`: a page of
    its own; each in place of `tables`; `charts`: an iterator of charts. `question`: the heading of a page.
    `unbounded`: the record may hold infinite numbers, written as null.
    """

    name: str
    record: str
    view: str = ""
    tables: str = ""
    charts: str = ""
    question: str = ""
    summary: str = ""
    sheet: str = ""
    page: str = ""
    unbounded: bool = False


class Alternative(NamedTuple):
    """Another question under the same verb, chosen by a flag that takes nothing."""

    flag: str
    function: str
    help: str
    answer: Answer


class Verb(NamedTuple):
    """A verb of the command line and of the Python API.

    `function` answers in Python; `further` are more public Python names of the verb. `command` prints, where the verb
    has such a function of its own. With `shared`, the verb is about a deployment, or its options are these: options
    that many verbs have (`cli.verbs.SHARED`), and keywords with a `Flag` of `function`, or of the function `flags`.
    Without both, the flags are all such keywords and the fields of the function's specs. `specs`: records whose fields
    are flags; `traffic_fields`: only these of Traffic's; `without`: fields that are no flags here. `progress`: what the
    function's progress counts; `unmet`: the property of the answer without which the exit code is 1. `reads`: the parts
    of a deployment that change the answer (`deployment.reading`). `first`: the flags of the first help page.
    """

    name: str
    help: str
    function: str = ""
    answers: tuple[Answer, ...] = ()
    command: str = ""
    flags: str = ""
    further: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    traffic_fields: tuple[str, ...] | str | None = None
    without: tuple[str, ...] = ()
    progress: str = ""
    unmet: str = ""
    reads: str = ""
    first: str = ""
    examples: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


VERBS = (
    Verb(
        "fit",
        help="""Does it fit? Memory per GPU, KV capacity, longest context, most concurrent requests.

Without --gpu, or with --gpu all, of every GPU, each at its smallest pool that holds it, the cheapest first.""",
        function="capacity.answers.fit:fit",
        command="capacity.cli.answers:fit",
        further=("capacity.answers.fit_comparison:compare_fits", "capacity.answers.records:Fit"),
        answers=(
            Answer(
                "fit",
                "capacity.answers.records:Fit",
                tables="capacity.report.answers:fit_tables",
                charts="capacity.report.figures.of_answer:fit_charts",
            ),
            Answer(
                "fit-comparison",
                "capacity.answers.fit_comparison:FitComparison",
                tables="capacity.report.fit_comparison:fit_comparison_tables",
                question="Which GPUs hold this model?",
            ),
        ),
        specs=(POOL,),
        shared=MODEL_AND_PLACE,
        reads="FIT",
        first=f"{ENGINE} gpu-memory-utilization from-launch download format",
        examples=(
            "fit gpt-oss-120b --gpu h200",
            "fit llama-3.1-70b --gpu a100 -tp 2 -q awq --max-model-len 32k",
            "fit --from-launch 'vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384' --gpu l4",
        ),
    ),
    Verb(
        "estimate",
        help="""How fast, and at what cost? TTFT, TPOT, throughput of a batch, at a concurrency or at a rate.

--gpu all asks it of every GPU, each with the replicas that serve the load.""",
        function="capacity.planning.sizing.sized_estimate:estimate",
        command="capacity.cli.answers:estimate",
        further=(
            "capacity.planning.sizing.gpu_comparison:compare_gpus",
            "capacity.answers.load_sweep:load_sweep",
            "capacity.answers.records:Estimate",
            "capacity.hardware.cost_estimate:CostEstimate",
        ),
        answers=(
            Answer(
                "estimate",
                "capacity.answers.records:Estimate",
                tables="capacity.report.answers:estimate_tables",
                summary="capacity.report.answers:estimate_summary",
                sheet="capacity.report.answers:estimate_sheet",
                charts="capacity.report.figures.of_answer:estimate_charts",
            ),
            Answer(
                "gpu-comparison",
                "capacity.planning.sizing.gpu_comparison:GpuComparison",
                tables="capacity.report.gpu_comparison:gpu_comparison_tables",
                charts="capacity.report.figures.of_answer:comparison_charts",
                question="Which GPU serves this load, how fast and how dear?",
            ),
            Answer(
                "load-sweep",
                "capacity.answers.load_sweep:LoadSweep",
                tables="capacity.report.load_sweep:load_sweep_tables",
                charts="capacity.report.figures.of_answer:sweep_charts",
                question="How does it answer to its load?",
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        traffic_fields=ESTIMATED,
        shared=("model", "slo", *PLACE, "detail"),
        reads="ESTIMATE",
        first=f"{ENGINE} {LENGTHS} concurrency request-rate use-case users slo batch-size price-tier detail format",
        examples=(
            f"estimate {LLAMA} {CHAT} --concurrency 32 --price-tier on-demand",
            f"estimate llama-3.1-8b --gpu l4 -q fp8 {CHAT} --request-rate 0.5",
            "estimate qwen3-32b --gpu h200 --input-len 8192 --output-len 500 --batch-size 16 --format json",
        ),
    ),
    Verb(
        "explain",
        help=(
            "Where does the time go, and what would help? Shares by bound, and what +10 % of each does. Or: what is "
            "TTFT?"
        ),
        function="capacity.answers.explain:explain",
        command="capacity.cli.answers:explain",
        further=("capacity.answers.records:Attribution",),
        answers=(
            Answer(
                "explain",
                "capacity.answers.records:Attribution",
                tables="capacity.report.answers:explain_tables",
                charts="capacity.report.figures.of_answer:explain_charts",
            ),
            Answer("definition", "capacity.techniques.glossary:Definition", question="What does it mean?"),
        ),
        specs=(POOL, TRAFFIC),
        traffic_fields=ESTIMATED,
        shared=PLACE,
        reads="ESTIMATE",
        first=f"{ENGINE} {LENGTHS} concurrency request-rate batch-size interval format",
        examples=(
            f"explain {LLAMA} {CHAT} --concurrency 32",
            f"explain {LLAMA} {CHAT} --concurrency 32 --interval",
            "explain ttft",
            f"explain goodput {LLAMA} {CHAT} --concurrency 32",
        ),
    ),
    Verb(
        "simulate",
        help=(
            "What would users see? Replays a trace or generated arrivals through the engine's scheduler, step by step."
        ),
        function="capacity.answers.simulate:simulate",
        command="capacity.cli.answers:simulate",
        further=("capacity.answers.records:Simulation",),
        answers=(
            Answer(
                "simulation",
                "capacity.answers.records:Simulation",
                tables="capacity.report.simulation:simulation_tables",
                summary="capacity.report.simulation:simulation_summary",
                sheet="capacity.report.simulation:simulation_sheet",
                charts="capacity.report.figures.of_answer:simulation_charts",
            ),
        ),
        specs=(POOL, TRAFFIC, SERVICE, COST),
        shared=(
            *("model", "goodput", "slo", "slo_window", "runs", "engine_loop", "save_trace"),
            *(
                "save_trace_for",
                "records",
                "series",
                "sample_interval",
                "timeline",
                "gantt",
                *PLACE,
                "detail",
            ),
        ),
        reads="DEPLOYED",
        first=f"{ENGINE} {LOAD} replicas slo goodput records detail format",
        examples=(
            f"simulate llama-3.1-8b --gpu h100 {CHAT} --request-rate 12 --num-prompts 500 --slo ttft:p95:200ms",
            f"simulate {LLAMA} {CHAT} --concurrency 32 --num-prompts 320",
            "simulate llama-3.1-8b --gpu h100 --replicas 4 --router prefix-aware --trace requests.csv",
        ),
    ),
    Verb(
        "schedule",
        help=(
            "What does the scheduler decide, step by step? Written scenarios in, the reference schedules' format out."
        ),
        command="capacity.cli.answers:schedule",
        examples=("schedule scenario.json --format table",),
    ),
    Verb(
        "models",
        help="The model presets, with parameters and KV bytes per token; `models add` keeps one of your own.",
        function="capacity.answers.listings:models",
        command="capacity.cli.answers:models",
        further=("capacity.model.presets:add_model",),
        examples=("models",),
    ),
    Verb(
        "gpus",
        help=(
            "The GPU profiles, with memory, bandwidth and dense compute rates; or what engines run on them; `gpus add` "
            "writes\na profile of your own."
        ),
        function="capacity.answers.listings:gpus",
        command="capacity.cli.answers:gpus",
        flags="capacity.hardware.what_if:add_gpu",
        shared=(
            *("like", "memory_gb", "hbm_tb_s", "bf16_tflops", "fp8_tflops", "scale_up_gb_s", "tdp_watts"),
            *("format", "profiles", "support", "gpu"),
        ),
        further=("capacity.hardware.what_if:add_gpu", "capacity.answers.support:gpu_support"),
        alternatives=(
            Alternative(
                "--support",
                function="capacity.answers.support:gpu_support",
                help="Which engine runs which weight format where, and how well known.",
                answer=Answer(
                    "gpu-support",
                    "capacity.answers.support:SupportMatrix",
                    tables="capacity.report.gpu_support:gpu_support_tables",
                    question="Which engine runs which weight format on which GPU?",
                ),
            ),
        ),
        examples=("gpus",),
    ),
    Verb(
        "use-cases",
        help="The use cases of --use-case: lengths, service levels and think times, with where each is from.",
        function="capacity.answers.listings:use_cases",
        command="capacity.cli.answers:use_cases",
        examples=("use-cases", "use-cases --format json"),
    ),
    Verb(
        "schema",
        help="The JSON schema of a verb's answer, or of a file; without a name, which there are.",
        command="capacity.cli.answers:schema",
        examples=("schema", "schema estimate"),
    ),
    Verb(
        "frontier",
        help=(
            "Fast for a user, or cheap for all? Tokens/s per GPU against tokens/s for a user, of many deployments at "
            "once."
        ),
        function="capacity.answers.frontier:frontier",
        command="capacity.cli.answers:frontier",
        answers=(
            Answer(
                "frontier",
                "capacity.answers.frontier:Frontier",
                tables="capacity.report.frontier:frontier_tables",
                charts="capacity.report.figures.of_answer:frontier_charts",
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=("model", *SEARCHED[1:]),
        traffic_fields=ESTIMATED,
        without=(
            *("gpu", "quantization", "engine", "tensor_parallel_size"),  # an axis each
            *(
                "batch_size",
                "concurrency",
                "request_rate",
                "requests_per_day",
                "burstiness",
            ),  # it sets the loads
        ),
        reads="FRONTIER",
        first=f"gpus quantizations engines tensor-parallel-sizes {LENGTHS} loads tpot price-tier chart detail format",
        examples=(
            f"frontier llama-3.1-70b --gpus h100,h200,b200 --quantizations default,fp8 {CHAT} --price-tier on-demand",
            f"frontier llama-3.1-8b --gpus h100,l40s {CHAT} --tpot 20 --chart frontier.html",
        ),
    ),
    Verb(
        "quantize",
        help="Which way to quantize? Memory, batch, latency, cost and published quality of each, side by side.",
        function="capacity.techniques.quantize:quantize",
        answers=(
            Answer(
                "quantize",
                "capacity.techniques.quantize:Quantizing",
                view="capacity.report.views.quantize:quantize_view",
            ),
        ),
        reads="CLOSED_FORM",
        first="gpu tensor-parallel-size engine input-len output-len large-batch method list price-tier format",
        examples=(
            "quantize llama-3.1-70b --gpu h100 -tp 4",
            "quantize llama-3.1-8b --gpu l4 --method awq-int4 --method fp8-tensor",
            "quantize --list",
        ),
        alternatives=(
            Alternative(
                "--list",
                function="capacity.techniques.quantize:quantization_list",
                help="Only the names that --quantization takes, in every verb.",
                answer=Answer(
                    "quantizations",
                    "capacity.techniques.quantize:Quantizations",
                    view="capacity.report.views.quantize:quantizations_view",
                    question="Which weight formats are there?",
                ),
            ),
        ),
    ),
    Verb(
        "speculate",
        help="Does speculative decoding pay, with how many drafts, up to which batch?",
        function="capacity.techniques.speculate:speculate",
        answers=(
            Answer(
                "speculate",
                "capacity.techniques.speculate:Speculating",
                view="capacity.report.views.speculate:speculate_view",
            ),
        ),
        reads="SPECULATE",
        first="gpu tensor-parallel-size engine method draft-tokens context-tokens batches textbook list format",
        examples=(
            "speculate llama-3.1-70b --gpu h100 -tp 4",
            "speculate llama-3.1-70b --gpu h100 -tp 4 --method draft-model --draft llama-3.2-1b --acceptance 0.8",
            "speculate --list",
        ),
        alternatives=(
            Alternative(
                "--textbook",
                function="capacity.techniques.speculate:textbook",
                help="Only a published textbook table, beside the formulas.",
                answer=Answer(
                    "textbook",
                    "capacity.techniques.speculate:Textbook",
                    view="capacity.report.views.speculate:textbook_view",
                    question="What does the textbook say about speculative decoding?",
                ),
            ),
            Alternative(
                "--list",
                function="capacity.techniques.speculate:speculation_methods",
                help="Only the ways to draft, with their published acceptance.",
                answer=Answer(
                    "speculators",
                    "capacity.techniques.speculate:Speculators",
                    view="capacity.report.views.speculate:speculators_view",
                    question="Which ways to draft are there?",
                ),
            ),
        ),
    ),
    Verb(
        "scale",
        help="What do more GPUs buy? Latency, throughput per GPU and efficiency along one axis of parallelism.",
        function="capacity.techniques.scaling:scale",
        answers=(
            Answer(
                "scale",
                "capacity.techniques.scaling:Scaling",
                view="capacity.report.views.scaling:scaling_view",
            ),
        ),
        reads="CLOSED_FORM",
        first="gpu tensor-parallel-size engine input-len output-len concurrency axis most-gpus tpot price-tier format",
        examples=(
            "scale llama-3.1-70b --gpu h100",
            "scale deepseek-v3 --gpu h200 -tp 8 --axis expert",
            "scale llama-3.1-8b --gpu l4 --axis pipeline --most-gpus 4",
        ),
    ),
    Verb(
        "attention-io",
        help=(
            "What does FlashAttention save? HBM traffic and memory of naive and tiled attention, and the measured "
            "kernel."
        ),
        function="capacity.techniques.attention_io:attention_traffic",
        answers=(
            Answer(
                "attention-io",
                "capacity.techniques.attention_io:AttentionTrafficTable",
                view="capacity.report.views.attention_io:attention_io_view",
            ),
        ),
        reads="NOTHING",
        first="gpu contexts tensor-parallel-size format",
        examples=(
            "attention-io llama-3.1-8b --gpu h100",
            "attention-io llama-2-7b --gpu a100 --contexts 4K,32K,128K",
        ),
    ),
    Verb(
        "beam-search",
        help="What does each more beam of a request cost, in steps and in KV, by how an engine carries beams along?",
        function="capacity.techniques.beam_search:beam_search",
        answers=(
            Answer(
                "beam-search",
                "capacity.techniques.beam_search:BeamSearch",
                view="capacity.report.views.beam_search:beam_search_view",
            ),
        ),
        reads="CLOSED_FORM",
        first=f"gpu beam-widths {LENGTHS} batch-size tensor-parallel-size engine format",
        examples=(
            "beam-search llama-3.1-8b --gpu h100",
            "beam-search llama-3.1-8b --gpu h100 --beam-widths 1,4 --batch-size 32",
        ),
    ),
    Verb(
        "batching",
        help="What does continuous batching gain, by the spread of lengths in closed form, and on these arrivals?",
        function="capacity.techniques.batching:compare_batching",
        answers=(
            Answer(
                "batching",
                "capacity.techniques.batching:Batching",
                view="capacity.report.views.batching:batching_view",
            ),
        ),
        without=NO_ARRIVALS,
        reads="BATCHING",
        first=f"gpu tensor-parallel-size engine {LENGTHS} request-rate num-prompts batch-size spread format",
        examples=(
            f"batching llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --num-prompts 300",
            "batching llama-3.1-8b --gpu h100 --input-len 512 --output-len 256 --length-distribution lognormal "
            "--request-rate 5 --num-prompts 200",
        ),
    ),
    Verb(
        "charts",
        help="The handbook's charts for your model and GPU, as SVG files.",
        command="capacity.cli.registered:charts",
        specs=(POOL,),
        reads="CLOSED_FORM",
        first="gpu tensor-parallel-size quantization engine output",
        examples=("charts llama-3.1-8b --gpu h100 --output charts",),
    ),
    Verb(
        "kv",
        help="How large is the KV cache? Per token and per request, by kind of attention, and what each GPU holds.",
        function="capacity.techniques.kv:kv",
        answers=(
            Answer(
                "kv",
                "capacity.techniques.kv:KvAnswer",
                view="capacity.report.views.kv:kv_view",
            ),
        ),
        first="gpu kv-cache-dtype contexts batch-size window eviction kv-budget tensor-parallel-size format",
        examples=("kv llama-3.1-70b", "kv llama-3.1-70b deepseek-v3 gpt-oss-120b --contexts 8K,128K"),
    ),
    Verb(
        "cache-curve",
        help=(
            "Does prefix caching pay? Hit rate at every cache size, by routing, and the bill under providers' caches."
        ),
        function="capacity.techniques.cache_curve:cache_curve",
        flags="capacity.techniques.cache_curve:cache_curve_by_flags",
        answers=(
            Answer(
                "cache-curve",
                "capacity.techniques.cache_curve:CacheCurve",
                view="capacity.report.views.cache_curve:cache_curve_view",
            ),
        ),
        first="capacity-tokens block-tokens replicas model gpu tensor-parallel-size price plan num-prompts format",
        examples=("cache-curve requests.jsonl", "cache-curve requests.jsonl --replicas 8"),
    ),
    Verb(
        "engines",
        help="""The serving engines, with the defaults, limits and overheads that the simulator takes.

--compare MODEL serves one load under each: throughput, latency and memory with intervals, and what each lacks.""",
        function="capacity.techniques.engine_table:engine_table",
        command="capacity.cli.answers:engines",
        further=("capacity.answers.engine_comparison:compare_engines",),
        answers=(
            Answer(
                "engines",
                "capacity.techniques.engine_table:Engines",
                view="capacity.report.views.engine_table:engines_view",
            ),
            Answer(
                "engine-comparison",
                "capacity.answers.engine_comparison:EngineComparison",
                tables="capacity.report.engine_comparison:engine_comparison_tables",
                question="How does each engine serve this load?",
                charts="capacity.report.figures.of_answer:engine_charts",
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=("deployment", "from_launch", "format", "profiles"),
        traffic_fields=ESTIMATED,
        without=("engine",),
        first=f"compare gpu engines tensor-parallel-size quantization {LENGTHS} concurrency request-rate claims format",
        examples=(
            "engines --gpu b200",
            "engines --compare llama-3.1-8b --gpu h100 --isl 1000 --osl 200 --concurrency 32",
        ),
    ),
    Verb(
        "plan",
        help="What to rent? The cheapest deployments that meet a service level on real traffic, with proof and price.",
        function="capacity.planning.plan:plan",
        command="capacity.cli.planning:plan",
        further=("capacity.planning.records:Plan",),
        answers=(
            Answer(
                "plan",
                "capacity.planning.records:Plan",
                tables="capacity.report.plan:plan_tables",
                summary="capacity.report.plan_summary:plan_summary",
                page="capacity.report.plan_html:plan_html",
                charts="capacity.report.figures.of_answer:plan_charts",
                unbounded=True,
            ),
        ),
        specs=(SEARCH, TRAFFIC, COST),
        shared=("model", "slo", "workers", "cluster", *SEARCHED),
        without=NO_ARRIVALS,
        first=f"slo {LENGTHS} request-rate use-case users trace gpus quantizations engines objective price-tier "
        "time-limit-s output detail format",
        examples=(
            f"plan llama-3.1-8b {CHAT} --request-rate 20 --slo ttft:p95:500ms --slo tpot:p95:50ms "
            "--gpus h100,l40s --price-tier on-demand",
            "plan llama-3.1-8b --use-case chat --users 500 --gpus h100,l40s --price-tier on-demand",
            "plan llama-3.1-70b --trace requests.csv --slo ttft:p95:1s --price-tier on-demand --output plan",
        ),
    ),
    Verb(
        "fleet",
        help=(
            "What fleet to rent? Pools of unequal GPUs behind a router by length: the threshold found, against one "
            "pool."
        ),
        function="capacity.planning.fleets.fleet:fleet",
        command="capacity.cli.planning:fleet",
        further=("capacity.planning.fleets.fleet_records:FleetPlan",),
        answers=(
            Answer(
                "fleet",
                "capacity.planning.fleets.fleet_records:FleetPlan",
                tables="capacity.report.fleet:fleet_tables",
                summary="capacity.report.fleet:fleet_summary",
                charts="capacity.report.figures.of_answer:fleet_charts",
                question="What to rent, where short and long requests go apart?",
                unbounded=True,
            ),
        ),
        specs=(SEARCH, TRAFFIC, COST, SPLIT),
        shared=("model", "slo", "workers", *SEARCHED),
        without=(*NO_ARRIVALS, "routers", "serving", "alternatives", "latency_tolerance"),
        first=f"slo {LENGTHS} request-rate trace gpus short-gpus long-gpus split-at price-tier spare-replicas "
        "peak-to-mean output format",
        examples=(
            f"fleet llama-3.1-8b {CHAT} --length-distribution lognormal --request-rate 40 --slo ttft:p99:500ms "
            "--gpus l4,l40s,h100 --price-tier on-demand",
            "fleet llama-3.1-8b --trace requests.csv --slo ttft:p95:1s --split-at 1024,4096 --short-gpus l40s "
            "--long-gpus h100 --price-tier on-demand --output fleet.toml",
        ),
    ),
    Verb(
        "cost",
        help="What does it cost? The bill at the served and at full load; against an API, on spot, by a deadline.",
        function="capacity.planning.bills.cost:cost",
        further=("capacity.planning.bills.billing:Bill",),
        answers=(
            Answer(
                "cost",
                "capacity.planning.bills.billing:Bill",
                view="capacity.report.views.cost:bill_view",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, COST, BILLING),
        shared=("model", "slo", "slo_window", *OF_A_DEPLOYMENT[1:]),
        unmet="serves",
        without=NO_ARRIVALS,
        reads="SIMULATED",
        first=f"gpu tensor-parallel-size quantization {LOAD} users slo price-tier api format",
        examples=(
            f"cost {LLAMA} {CHAT} --request-rate 4 --price-tier on-demand",
            f"cost {LLAMA} {CHAT} --request-rate 4 --price-tier on-demand --api all",
        ),
    ),
    Verb(
        "curve",
        help=(
            "How much can it take? Latency against load, the knee, the highest rate in the SLO, users, replicas by "
            "hour."
        ),
        function="capacity.planning.load.curve:curve",
        command="capacity.cli.planning:curve",
        further=("capacity.planning.load.curve:Curve",),
        answers=(
            Answer(
                "curve",
                "capacity.planning.load.curve:Curve",
                tables="capacity.report.curve:curve_tables",
                page="capacity.report.plan_html:curve_html",
                charts="capacity.report.figures.of_answer:curve_charts",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=(
            *("model", "slo", "slo_window", "replicas", "confidence", "rates", "requests_per_user_hour"),
            *("peak_rate", "peak_to_mean", "hourly_rates", "replications", "cluster", "output"),
            *OF_A_DEPLOYMENT[1:],
        ),
        without=NO_ARRIVALS,
        reads="CURVE",
        first=f"gpu tensor-parallel-size quantization engine {LENGTHS} trace slo rates replicas output format",
        examples=(
            f"curve llama-3.1-8b --gpu h100 {CHAT} --slo ttft:p95:500ms --slo tpot:p95:50ms",
            f"curve llama-3.1-8b --gpu h100 {CHAT} --slo ttft:p95:500ms --requests-per-user-hour 12",
        ),
    ),
    Verb(
        "tornado",
        help="What does the answer hang on? Cost and p95 when each input is wrong by 20 %.",
        function="capacity.planning.variations.tornado:tornado",
        answers=(
            Answer(
                "tornado",
                "capacity.planning.variations.tornado:Tornado",
                view="capacity.report.views.tornado:tornado_view",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=COMPARED,
        progress="inputs",
        without=NO_ARRIVALS,
        reads="SIMULATED",
        first=f"{ENGINE} {LOAD} price-tier format",
        examples=(f"tornado llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --price-tier on-demand",),
    ),
    Verb(
        "advise",
        help="What would help here? The optimisation checklist, each line simulated for this deployment.",
        function="capacity.planning.variations.advice:advise",
        answers=(
            Answer(
                "advice",
                "capacity.planning.variations.advice:AdviceList",
                view="capacity.report.views.advice:advice_view",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=COMPARED,
        progress="changes",
        without=NO_ARRIVALS,
        reads="SIMULATED",
        first=f"{ENGINE} {LOAD} price-tier format",
        examples=(f"advise llama-3.1-8b --gpu h100 {CHAT} --request-rate 10 --price-tier on-demand",),
    ),
    Verb(
        "stack",
        help="What is each technique worth? From none to all of them, one upon the other, and each of them alone.",
        function="capacity.planning.variations.stack:stack",
        answers=(
            Answer(
                "stack",
                "capacity.planning.variations.stack:Stack",
                view="capacity.report.views.stack:stack_view",
                question="What is each technique worth, one upon the other?",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, COST),
        shared=(*COMPARED[:3], "order", *COMPARED[3:]),
        progress="techniques",
        without=NO_ARRIVALS,
        reads="SIMULATED",
        first=f"{ENGINE} {LOAD} price-tier order format",
        examples=(
            f"stack llama-3.1-8b --gpu h100 {CHAT} --concurrency 32",
            f"stack llama-3.1-8b --gpu h100 {CHAT} --concurrency 32 --order bf16,kv-cache,static-batching",
        ),
    ),
    Verb(
        "diff",
        help="What is the difference? Two deployments on the same arrivals, request by request, with confidence.",
        function="capacity.planning.variations.diff:diff",
        command="capacity.cli.planning:diff",
        further=("capacity.planning.variations.diff:Diff",),
        answers=(
            Answer(
                "diff",
                "capacity.planning.variations.diff:Diff",
                view="capacity.report.views.diff:diff_view",
                unbounded=True,
            ),
        ),
        specs=(POOL, TRAFFIC, SERVICE, COST),
        shared=("compared_window", "runs", "seed", "cluster", *OF_A_DEPLOYMENT[1:]),
        without=(*NO_ARRIVALS, "seed"),
        first=f"{ENGINE} replications seed deployment from-launch format",
        examples=("diff now.toml then.toml --replications 5", "diff --deployment now.toml -q fp8"),
    ),
    Verb(
        "sweep",
        help="Many points: a grid, zipped or random axes, over processes or a cluster, resumed where it was stopped.",
        function="capacity.planning.sweeps.sweep:sweep",
        command="capacity.cli.planning:sweep",
        further=("capacity.planning.sweeps.sweep_results:sweep_results",),
        answers=(
            Answer(
                "swept",
                "capacity.planning.sweeps.sweep:Swept",
                tables="capacity.report.sweep:swept_tables",
                question="What do the points of the sweep say?",
            ),
        ),
        shared=STORED,
        examples=("sweep sweep.toml --store results", "sweep sweep.toml --store results --export points.csv"),
    ),
    Verb(
        "from-launch",
        help="Read a line that launches a server (vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp, Ollama) as a deployment "
        "file,\nwhich every verb takes by --deployment.",
        function="capacity.deployment.launch_command:from_launch",
        command="capacity.cli.planning:from_launch",
        examples=(
            "from-launch 'vllm serve Qwen/Qwen3-32B -tp 2' --gpu h100 --output deployment.toml",
            "from-launch 'text-generation-launcher --model-id Qwen/Qwen3-32B --num-shard 2' --gpu h100",
        ),
    ),
    Verb(
        "from-vllm",
        help="The same as `from-launch`, by its older name.",
        function="capacity.deployment.launch_command:from_vllm",
        command="capacity.cli.planning:from_vllm",
        examples=("from-vllm 'vllm serve Qwen/Qwen3-32B -tp 2' --gpu h100 --output deployment.toml",),
    ),
    Verb(
        "cascade",
        help=(
            "Ask something cheaper first? A semantic cache or a small model before a large one: $, latency, break-even."
        ),
        function="capacity.planning.cascades.cascade:cascade",
        command="capacity.cli.planning:cascade",
        answers=(
            Answer(
                "cascade",
                "capacity.planning.cascades.cascade_answer:CascadeAnswer",
                tables="capacity.report.cascade:cascade_tables",
                charts="capacity.report.figures.of_answer:cascade_charts",
                question="Is something cheaper asked first?",
            ),
        ),
        specs=(CASCADE, POOL, TRAFFIC, COST),
        shared=("model", "chart", "simulate", "format", "profiles", "download"),
        traffic_fields=ESTIMATED,
        without=("batch_size", "concurrency", "burstiness"),
        reads="SIMULATED",
        first=f"small escalation-rate cache-hit-rate small-gpu api gpu tensor-parallel-size {LENGTHS} request-rate "
        "price-tier format",
        examples=(
            f"cascade {LLAMA} --small llama-3.1-8b --escalation-rate 0.3 {CHAT} --request-rate 20 "
            "--price-tier on-demand",
            f"cascade {LLAMA} --cache-hit-rate 0.2 {CHAT} --request-rate 20 --price-tier on-demand",
        ),
    ),
    Verb(
        "validate",
        help=(
            "How wrong is the model here? Measures this device's kernels and a whole model, calibrates, and reports."
        ),
        command="capacity.cli.validation:validate",
        flags="capacity_validate:validate",
        shared=(
            *("device", "campaign", "budget", "out", "gpu", "tolerance_ttft", "tolerance_tpot", "threads"),
            *("seed", "engine", "model", "format", "profiles", *STORED),
        ),
        first="device campaign budget out gpu engine model deployment from-launch format",
        examples=(
            "validate --device cpu --campaign quick --budget 60s",
            "validate --engine vllm --deployment now.toml",
        ),
    ),
    Verb(
        "calibrate",
        help="Learn from runs of your own: a variant of the GPU's profile for --gpu, its intervals narrower.",
        function="capacity_validate:calibrate",
        command="capacity.cli.validation:calibrate",
        further=("capacity_validate:suggest_runs",),
        specs=(POOL, TRAFFIC),
        shared=("name", "out", "suggest", "format", "profiles", "download"),
        traffic_fields="capacity.cli.validation:COMPARED_TRAFFIC",
        first=f"gpu tensor-parallel-size quantization engine {LENGTHS} request-rate concurrency model name "
        "suggest format",
        examples=(
            "calibrate result.json --gpu h100 -tp 4",
            f"calibrate --suggest {LLAMA} {CHAT} --request-rate 4",
            "calibrate measurements --name h100-mine",
        ),
    ),
    Verb(
        "compare",
        help=(
            "Does it agree with your own server? Replays what a benchmark sent, and names the likely cause of each gap."
        ),
        function="capacity_validate:compare",
        command="capacity.cli.validation:compare",
        answers=(
            Answer(
                "comparison",
                "capacity_validate.comparison:Comparison",
                view="capacity_validate.comparison_page:comparison_view",
                question="Does it agree with your server?",
            ),
        ),
        specs=(POOL, TRAFFIC),
        shared=("server_log", "fit_overheads", "format", "profiles", "download"),
        traffic_fields="capacity.cli.validation:COMPARED_TRAFFIC",
        first=f"gpu tensor-parallel-size quantization engine {LENGTHS} request-rate concurrency model server-log "
        "deployment fit-overheads format",
        examples=(
            "compare result.json --gpu h100 -tp 4",
            "compare result.json --gpu h100 --server-log vllm.log --fit-overheads",
        ),
    ),
    Verb(
        "dashboard",
        help="What if? The same answers in a browser: sliders, charts, links to share. Needs the dashboard extra.",
        command="capacity.cli.dashboard:dashboard",
        examples=("dashboard", "dashboard --port 8600"),
    ),
)
BY_NAME = {verb.name: verb for verb in VERBS}
ANSWERS = {
    answer.name: answer
    for verb in VERBS
    for answer in (*verb.answers, *(other.answer for other in verb.alternatives))
}


def split_path(path: str) -> tuple[str, str]:
    """Return the module and the name of `module:name`."""
    module, _, name = path.partition(":")
    return module, name


def public_names() -> dict[str, str]:
    """Return the module of each public Python name of the verbs."""
    paths = [path for verb in VERBS for path in (verb.function, *verb.further) if path]
    return {name: module for module, name in map(split_path, paths)}
