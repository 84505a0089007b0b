"""Service input: the router in front of the engines, and timeouts."""

from typing import Literal

from pydantic import Field

from capacity.deployment.field_flags import FiniteOrInf, FlagSpec
from capacity.deployment.routers import ROUTERS


class Service(FlagSpec):
    """The router in front of the engines, and the timeouts of clients and servers."""

    router: str = Field(
        default="round-robin",
        description=f"Router, which selects the replica of a request: {', '.join(ROUTERS)}.",
    )
    router_ttft_s: float | None = None
    escalate_by: Literal["answer", "prompt"] = "answer"
    judge_s: float = 0.0
    cache_hit_rate: float = 0.0
    cache_lookup_s: float = 0.0
    max_queued_requests: int | None = None
    max_outstanding_requests: int | None = None
    request_timeout_s: float | None = None
    prefill_replicas: int | None = None
    decode_router: str = "least-outstanding"
    kv_transfer_link: Literal["infiniband", "nvlink", "pcie"] = "infiniband"
    kv_transfer_bytes_per_s: FiniteOrInf | None = None
    kv_transfer_layerwise: bool = False
    mean_time_between_failures_s: float | None = None
    recovery_s: float | None = None
    requests_of_lost_replicas: Literal["restart", "fail"] = "restart"
    autoscale_max_replicas: int | None = None
    autoscale_target_requests: float | None = None
    decode_autoscale_max_replicas: int | None = None
    decode_autoscale_target_requests: float | None = None
    replica_startup_s: float | None = None
    autoscale_interval_s: float = 15.0
    scale_down_delay_s: float = 300.0
