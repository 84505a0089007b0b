"""Service: what stands before the engines, as a user writes it."""

from typing import Literal

from capacity.base.clock import LATEST_S
from capacity.base.spec import Spec
from capacity.deployment.field_flags import FiniteOrInf, Need, flag
from capacity.deployment.routers import ROUTERS


class Service(Spec):
    """What stands before the engines: the router, and the patience of everyone involved."""

    router: str = flag(
        "round-robin",
        f"Which replica a request goes to: {', '.join(ROUTERS)}.",
        needs=(Need("replicas"), Need("autoscale_max_replicas"), Need("data_parallel_size")),
    )
    router_ttft_s: float | None = flag(
        None,
        "The router within-ttft sends to the first pool expected to bring the first token within so many seconds.",
        gt=0,
        le=LATEST_S,
        needs=Need("router", ("within-ttft",)),
    )
    escalate_by: Literal["answer", "prompt"] = flag(
        "answer",
        "What a cascade decides by: each pool's whole answer, so that some requests are answered again, or the prompt "
        "alone.",
        needs=Need("router", ("cascade",)),
    )
    judge_s: float = flag(0.0, "Seconds that this takes.", ge=0, le=3600, needs=Need("router", ("cascade",)))
    cache_hit_rate: float = flag(
        0.0,
        "Share of requests that a semantic cache before a cascade answers; yours to measure.",
        ge=0,
        le=1,
        needs=Need("router", ("cascade",)),
    )
    cache_lookup_s: float = flag(
        0.0, "Seconds to look a prompt up there.", ge=0, le=3600, needs=Need("cache_hit_rate")
    )
    max_queued_requests: int | None = flag(
        None, "An engine turns a request away where that many wait.", ge=1, le=1 << 40
    )
    max_outstanding_requests: int | None = flag(
        None, "The router keeps requests back while every engine has that many.", ge=1, le=1 << 40
    )
    request_timeout_s: float | None = flag(
        None, "A client gives up that many seconds after it has sent.", "--request-timeout", gt=0, le=LATEST_S
    )
    prefill_replicas: int | None = flag(
        None, "Of --replicas, so many only prefill and the others only decode.", ge=1, le=4096
    )
    decode_router: str = flag(
        "least-outstanding",
        "The same as --router, among the replicas that only decode.",
        needs=(Need("prefill_replicas"), Need("role")),
    )
    kv_transfer_link: Literal["infiniband", "nvlink", "pcie"] = flag(
        "infiniband",
        "Link of KV between prefill and decode, of each GPU: infiniband, nvlink, pcie.",
        needs=(Need("prefill_replicas"), Need("role")),
    )
    kv_transfer_bytes_per_s: FiniteOrInf | None = flag(
        None,
        "Rate of KV between prefill and decode; default: that of --kv-transfer-link.",
        gt=0,
        needs=(Need("prefill_replicas"), Need("role")),
    )
    kv_transfer_layerwise: bool = flag(
        False,
        "Send KV layer by layer while the prompt is still computed, not after it.",
        needs=(Need("prefill_replicas"), Need("role")),
    )
    mean_time_between_failures_s: float | None = flag(
        None, "A replica is lost after so many seconds, on average (spot interruption).", "--mtbf", gt=0
    )
    recovery_s: float | None = flag(
        None,
        "Seconds until a new replica is in place of a lost one.",
        "--recovery",
        ge=0,
        le=LATEST_S,
        needs=Need("mean_time_between_failures_s"),
    )
    requests_of_lost_replicas: Literal["restart", "fail"] = flag(
        "restart",
        "What becomes of a lost replica's requests: restart on another, or fail.",
        needs=Need("mean_time_between_failures_s"),
    )
    autoscale_max_replicas: int | None = flag(
        None, "Scale from --replicas up to so many, each pool by itself.", "--max-replicas", ge=1, le=4096
    )
    autoscale_target_requests: float | None = flag(
        None,
        "Requests outstanding per replica that the autoscaler aims at.",
        "--target-requests",
        gt=0,
        needs=(Need("autoscale_max_replicas"), Need("decode_autoscale_max_replicas")),
    )
    decode_autoscale_max_replicas: int | None = flag(
        None,
        "Scale the replicas that only decode up to so many.",
        ge=1,
        le=4096,
        needs=(Need("prefill_replicas"), Need("role")),
    )
    decode_autoscale_target_requests: float | None = flag(
        None,
        "Requests per replica that only decodes; default: --autoscale-target-requests.",
        gt=0,
        needs=Need("decode_autoscale_max_replicas"),
    )
    replica_startup_s: float | None = flag(
        None,
        "Seconds until a replica that is started takes requests.",
        "--startup",
        ge=0,
        le=LATEST_S,
        needs=(Need("autoscale_max_replicas"), Need("decode_autoscale_max_replicas")),
    )
    autoscale_interval_s: float = flag(
        15.0,
        "Seconds between the autoscaler's decisions.",
        gt=0,
        le=LATEST_S,
        needs=(Need("autoscale_max_replicas"), Need("decode_autoscale_max_replicas")),
    )
    scale_down_delay_s: float = flag(
        300.0,
        "Seconds in which fewer replicas must suffice before one goes.",
        ge=0,
        le=LATEST_S,
        needs=(Need("autoscale_max_replicas"), Need("decode_autoscale_max_replicas")),
    )
