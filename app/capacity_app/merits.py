"""What each figure of merit means: its sense in a sentence for who hears the word first, then its formula."""

from __future__ import annotations

READING = "8 ms are 125 tokens/s, some 5,600 words a minute; people read 4 to 5 words a second"
TTFT = "How long a user waits for the first word. Time to first token: first output token less arrival, queue included."
TPOT = f"How fast the text appears: {READING}. Time per output token: (E2E - TTFT) / (output tokens - 1)."
PER_OUTPUT = (
    "What a million generated tokens cost. $ an hour by the share of GPU time that output takes, over it."
)
PER_INPUT = (
    "What a million prompt tokens cost. $ an hour by the share of GPU time that prompts take, over them."
)
SLOWEST = "The slowest one in twenty waits longer: the 95th percentile."

MEANINGS = {
    "TTFT": TTFT,
    "Mean TTFT": f"{TTFT} The mean over all requests.",
    "p95 TTFT": f"{TTFT} {SLOWEST}",
    "p95 E2E": "How long the slowest one in twenty waits for a whole answer. Last output token less arrival.",
    "TPOT": TPOT,
    "Mean TPOT": f"{TPOT} The mean over all requests.",
    "p95 TPOT": f"{TPOT} {SLOWEST}",
    "p50": "Half of all requests are quicker: the median.",
    "p90": "One request in ten takes longer: the 90th percentile.",
    "p95": "One request in twenty takes longer.",
    "p99": "One request in a hundred takes longer.",
    "E2E latency": "How long a whole answer takes. Last output token less arrival.",
    "Output tokens/s": "How much text the deployment writes for all users together. Output tokens over seconds.",
    "per user": "How fast one user's text appears. 1 / TPOT in a batch; output tokens / E2E of a load.",
    "per GPU": "How well a GPU is used. Output tokens a second over the number of GPUs.",
    "Requests/s": "How many questions are answered in a second. Requests completed over seconds.",
    "In flight": "How many requests are in the system at once. Little's law: requests/s x E2E latency.",
    "To rent": "What to rent: the best by what you asked for that keeps the service levels in simulation.",
    "GPUs": "How many GPUs it takes. Replicas x GPUs of each.",
    "Of the limit": (
        "How near the service level is that is nearest to its limit; what is left is the headroom. Value over limit, "
        "with step times as slow as the confidence asks for; the interval is of the traffic's chance."
    ),
    "The best": "The deployment and its load with the most output per GPU whose TPOT keeps the limit.",
    "Best: per GPU": "How well a GPU is used there. Output tokens a second over the number of GPUs.",
    "Best: per user": "How fast one user's text appears there. 1 / TPOT.",
    "Best: $ per 1M": PER_OUTPUT,
    "Goodput": "How many answers a second are as quick as you asked. Requests/s that meet every limit of the SLO.",
    "KV use": "How full the memory for running requests is. KV blocks in use over all; the mean over the run.",
    "KV cache": "Memory for running requests: what weights and workspace leave of a GPU, and the tokens it holds.",
    "KV capacity": "How many tokens of running requests fit. The KV cache over the KV of a token.",
    "Longest request": "The most tokens, prompt and answer, of one request that has the engine to itself.",
    "Concurrency": "How many of the longest requests run at once. The KV cache's tokens over such a request's.",
    "At these lengths": (
        "How many requests as long as the sidebar's run at once. Tokens of the KV cache over input and output tokens."
    ),
    "Smallest TP": "The fewest GPUs that hold one copy of the model. The least tensor-parallel size that fits.",
    "$ per hour": "What the deployment is rented for, busy or idle. $ per GPU-hour x GPUs.",
    "Per hour": "What the deployment is rented for, busy or idle. $ per GPU-hour x GPUs, whole instances.",
    "Per day": "The same over 24 hours, busy or idle.",
    "Per month": "What stands on the bill. $ an hour x 730 hours.",
    "$ a month": "What stands on the bill, busy or idle. $ an hour x 730 hours.",
    "$ per 1M output": PER_OUTPUT,
    "$ per 1M input": PER_INPUT,
    "$ per 1k requests": "What a thousand answers cost. $ an hour over the requests of an hour, times a thousand.",
    "Utilization": "How much of what is paid for is used. Load that is served over the load that it could serve.",
    "Provisioned energy": (
        "Upper bound of the energy of an output token. Full power of GPUs, hosts and cooling over output tokens per "
        "second; the drawn power is lower."
    ),
    "Together": (
        "How many times as much all techniques together make of the naive deployment. Output tokens/s with all of them "
        "over those with none."
    ),
    "If multiplied": (
        "What it would be if techniques did not get in each other's way. The product of the factors that each has "
        "alone, on the naive deployment."
    ),
    "KiB a token": "What the engine must remember of each token. Bytes of keys and values over all layers that grow.",
    "A request of": "What it must remember of a request of so many tokens. Its KV cache, windows and states included.",
    "The GPU holds": "The longest request that has the engine to itself. Free memory over bytes a token.",
    "Half attention from": (
        "From this context on a step spends more time on looking back than on the model's weights. Where attention "
        "takes half of a decode step."
    ),
    "A step": "How long one more token of each request takes at this context. A decode step, if memory were no limit.",
    "Keeping less": (
        "What forgetting could buy, with as many requests at once as fit then. The most output tokens/s of any method "
        "at this context; what answers lose stands below."
    ),
    "Beams": "How many continuations of an answer are kept in the race. The beam width.",
    "Times greedy": (
        "How much longer a token takes than without beam search. TPOT of all beams over that of one beam in the engine."
    ),
    "KV of a request": "What a request holds at its end. Tokens of KV of all its beams, those shared once.",
    "Requests held": "How many such requests the memory holds at once. KV blocks over those of one request.",
    "Threshold": "Where the router tells requests apart: those of up to so many tokens go to the first pool.",
    "A day": "What a day costs if replicas follow the hour's load. $ an hour over the replicas of each hour.",
    "Saved": "How much less is paid than with the one thing that it replaces. 1 - its bill over the other's.",
    "Mean E2E": "How long a whole answer takes on average, of all requests together. Last output token less arrival.",
    "Pays up to": (
        "Above this share of requests that go on to the large model, the large one alone is cheaper. Where $ a request "
        "of both are equal, with engines so many that none stands half idle."
    ),
    "Pays from": (
        "Below this share of requests that the cache answers, it costs more than it saves. Where $ a request with and "
        "without it are equal, with engines so many that none stands half idle."
    ),
    "Times as fast": "How much sooner text appears. TPOT without drafts, or on the smallest layout, over TPOT here.",
    "Found without a limit": "Share of prompt tokens that an earlier prompt began with: their KV is there.",
    "Nothing more beyond": "A cache larger than this finds nothing that this one does not.",
    "Requests": "What was read of the file.",
    "Prefill saved": (
        "Time that this model on this GPU does not spend on prompts, with all its KV cache for prefixes."
    ),
    "Weights": "Memory of the model's weights in this format, over all GPUs.",
    "TPOT in a batch": f"{TPOT} The same where many requests share each step.",
    "Most requests": "How many requests of these lengths run together, by memory or the engine's limit.",
    "$ per 1M tokens": "Input and output together, with as many requests at once as there is memory for.",
    "Efficiency": "What is left of a GPU's output where so many work together.",
    "Links": "Share of a step in which GPUs send to each other.",
    "Tokens a round": "How many tokens one step yields on average: accepted drafts, and one of the model's own.",
    "Verification": "What checking the drafts costs. Time of a step that verifies, in plain decode steps.",
    "Stops paying at batch": "From this batch size on drafts cost more than they save: no arithmetic is idle.",
    "Device": "The GPU that was measured, and the profile that it is compared with.",
    "Cases": "How many measurements there are. Half of them calibrate; the other half says how far off it is.",
    "TTFT error": "How far off the wait for the first token is. Mean predicted / measured - 1.",
    "TPOT error": "How far off the time per output token is. Mean predicted / measured - 1.",
    "Tokens/s error": "How far off the throughput is. Predicted / measured - 1.",
    "Error": "How far off predictions are on cases that calibrated nothing: the median of |predicted / measured - 1|.",
}


def meaning(label: str) -> str | None:
    """The help of a figure: by its label, or by what its label begins with; None of one that is not described."""
    begun = (text for name, text in MEANINGS.items() if label.startswith((f"{name} ", f"{name},")))
    return MEANINGS.get(label) or next(begun, None)
