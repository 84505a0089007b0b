"""Requests with arrival times and lengths, from distributions, clients or traces; and SLOs.

Input: the specification `Traffic`, a trace file in a format of `traces/formats`, or your own arrays. Output: a
`Workload` with columns of arrivals (s), lengths (tokens), sessions and contents; and `Slo`s. All random numbers depend
on one seed. This package does not depend on engines or GPUs. Start with `workload`, then `request_generation`.
"""

from capacity.workload.arrivals import (
    ArrivalProcess,
    PeriodicArrivals,
    RampArrivals,
    SteadyArrivals,
    diurnal,
    on_off,
)
from capacity.workload.clients import Clients, client_mix, user_loop
from capacity.workload.content import BlockRuns, PromptContent
from capacity.workload.export import write_csv, write_for_client, write_timed_trace
from capacity.workload.lengths import (
    FixedLengths,
    GammaLengths,
    Lengths,
    LognormalLengths,
    UniformLengths,
    rank_correlated,
)
from capacity.workload.randomness import random_stream
from capacity.workload.slo import Slo, parse_slos
from capacity.workload.synthetic import SharedPrefixes, ThinkTime, conversations, random_requests, synthetic
from capacity.workload.traces import read_trace, trace_titles
from capacity.workload.workload import Workload
