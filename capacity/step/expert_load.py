"""Routed experts of a step: their cost, how many different ones are read, and the load of the busiest rank."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from capacity.hardware.coefficients import MoeCoefficients
from capacity.step import Bound, StepShape
from capacity.step.operators import ACTIVATION_BYTES, Device, Repeated, largest_bound, p_norm
from capacity.step.row_counts import all_tokens

# Shape of a gamma distribution, fitted to 3,259 decode steps of 1 to 128 rows in a vLLM 0.15 log of gpt-oss-120b
# (openshift-psap/profilemate, 2026-11-21): median error 4 %, against 11 % for an even router. Values of 0.7 to 1.5 fit
# about as well.
ROUTING_GAMMA_SHAPE = 1.0
# For routers that training balances by a bias on each expert's score. Chosen on half of the served groups of such
# models (InferenceX: DeepSeek-V3 on B200 and H200, Kimi-K2.5 on B200, MiniMax-M2 NVFP4): the mean of their median TPOT
# errors is 6.8, 5.9, 5.4 % for 1, 2, 4; on the other half 5.8, 5.3, 5.1 %. 2026-11-22.
BALANCED_ROUTING_GAMMA_SHAPE = 4.0
# A tilt of the experts' time has no effect at the middle number of tokens, and a constant one above the upper limit:
# there each expert has a full tile of 128 rows (256 experts, 8 per token), and more tokens only add tiles.
MIDDLE_TOKENS = 32.0
MAX_EXPONENT_TOKENS = 4096.0


def distinct_experts(
    num_experts: float, experts_per_token: float, tokens: float, evenness: float = ROUTING_GAMMA_SHAPE
) -> float:
    """Return the expected number of distinct experts that `tokens` tokens use; each token uses k of the E experts.

    The popularities of the experts are unequal, with a gamma distribution of shape `evenness`: `E(1 - (1 - k/E)(1 +
    (tokens - 1)k/(E·shape))**-shape)`. For one token this is k. A perfectly even router (infinite shape) uses `E(1 - (1
    - k/E)**tokens)`, up to a third more.
    """
    if tokens <= 0:
        return 0.0
    share = min(1.0, experts_per_token / num_experts)
    if tokens <= 1:
        return num_experts * share * tokens
    spread = 1.0 + (tokens - 1.0) * share / evenness
    return num_experts * (1.0 - (1.0 - share) * math.pow(spread, -evenness))


def expected_max_z_squared(ranks: int) -> float:
    """Return the squared expected maximum of n = `ranks` normal draws: their quantile (n - 3/8)/(n + 1/4) (Blom)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) ** 2 if ranks > 1 else 0.0


def busiest_rank_load(total: float, ranks: int, variance: float | None = None) -> float:
    """Return the load of the busiest of `ranks` ranks that share the load `total`; all ranks wait for it.

    It is the mean load plus the expected maximum deviation, and at most `total`. `variance`: variance of a rank's load;
    default: its mean (items are assigned at random: Poisson).
    """
    if ranks <= 1:
        return total
    mean = total / ranks
    return min(
        total, mean + math.sqrt(expected_max_z_squared(ranks) * (mean if variance is None else variance))
    )


def busiest_rank_pairs(
    pairs: float, ranks: int, experts_per_rank: float, evenness: float = ROUTING_GAMMA_SHAPE
) -> float:
    """Return the token-expert pairs of the busiest rank, for random routing and experts of unequal popularity.

    Popularities have a gamma distribution of shape `evenness`, as in `distinct_experts`, so the number of pairs on a
    rank has a negative binomial distribution of variance `mean + mean**2 / (experts · shape)`. The normal approximation
    is 13 % too low with four experts per rank.
    """
    mean = pairs / ranks
    return busiest_rank_load(pairs, ranks, mean + mean * mean / (experts_per_rank * evenness))


def busiest_rank_experts(touched: float, ranks: int, experts_per_rank: float) -> float:
    """Return the number of experts that the busiest rank reads if `touched` are read in total (binomial per rank)."""
    mean = touched / ranks
    busiest = busiest_rank_load(touched, ranks, mean * max(0.0, 1.0 - mean / experts_per_rank))
    return min(busiest, experts_per_rank)


def moe_seconds(
    flops: float,
    moved_bytes: float,
    routed_bytes: float,
    *,
    flops_per_s: float,
    hbm_bytes_per_s: float,
    constants: MoeCoefficients,
) -> float:
    """Return the seconds of one layer's fused experts; `MoeCoefficients` has the formula.

    `moved_bytes` includes the weights of the distinct experts used; `routed_bytes`: to permute and combine tokens.
    """
    work = p_norm(
        flops / (constants.compute_fraction * flops_per_s),
        moved_bytes / (constants.bandwidth_fraction * hbm_bytes_per_s),
        constants.sharpness,
    )
    return work + routed_bytes / (constants.routed_fraction * hbm_bytes_per_s) + constants.fixed_s


def token_log_ratio(tokens: float) -> float:
    """Return ln(tokens / 32), with tokens limited to 1 to 4096. exp(tilt x result) is a factor on the experts' time."""
    return math.log(min(max(tokens, 1.0), MAX_EXPONENT_TOKENS) / MIDDLE_TOKENS)


def largest_roofline_fraction(constants: MoeCoefficients) -> float:
    """Return the largest fraction of a peak rate (FLOP/s or bytes/s) in the constants, at most 1. A smaller factor on
    the experts' time would make it shorter than the roofline time."""
    return min(1.0, max(constants.compute_fraction, constants.bandwidth_fraction, constants.routed_fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Repeated):
    """`count` layers of routed experts on one GPU.

    Whole experts are divided over `expert_ranks` ranks; if that is 1, each GPU has a slice of every expert.
    `weight_slowdown` is as in `Gemm`.
    """

    hidden: float
    intermediate: float  # of one expert, on one GPU
    matrices: int
    num_experts: float
    experts_per_token: float
    expert_ranks: int
    weight_bits: float
    activation_bits: float
    flops_per_s: float
    device: Device
    constants: MoeCoefficients
    token_groups: int = 1  # data-parallel ranks that send their tokens to these experts
    evenness: float = ROUTING_GAMMA_SHAPE
    weight_slowdown: float = 1.0

    def work(self, tokens: float, slowdown: float = 1.0) -> tuple[float, float, float]:
        """Return FLOPs, bytes and routed bytes of one layer on one GPU; `slowdown` multiplies the weight bytes."""
        tokens *= self.token_groups
        held = self.num_experts / self.expert_ranks
        local_pairs = busiest_rank_pairs(
            tokens * self.experts_per_token, self.expert_ranks, held, self.evenness
        )
        touched = distinct_experts(self.num_experts, self.experts_per_token, tokens, self.evenness)
        touched = busiest_rank_experts(touched, self.expert_ranks, held)
        matrix = self.hidden * self.intermediate
        rows, routed = (
            local_pairs,
            local_pairs if self.constants.local_routing else tokens * self.experts_per_token,
        )
        if self.constants.tile_rows > 1:
            rows = routed = tokens * self.experts_per_token + held * (self.constants.tile_rows - 1)
        flops = 2.0 * rows * self.matrices * matrix
        moved = (
            touched * self.matrices * matrix * (self.weight_bits * slowdown) / 8
            + local_pairs * self.hidden * (self.activation_bits / 8 + ACTIVATION_BYTES)
            + local_pairs * self.intermediate * self.matrices * ACTIVATION_BYTES
        )
        return flops, moved, routed * self.hidden * ACTIVATION_BYTES

    def seconds(self, shape: StepShape) -> float:
        tokens = all_tokens(shape)
        if tokens <= 0:
            return 0.0
        flops, moved, routed = self.work(tokens, self.weight_slowdown)
        seconds = moe_seconds(
            flops,
            moved,
            routed,
            flops_per_s=self.flops_per_s,
            hbm_bytes_per_s=self.device.hbm_bytes_per_s,
            constants=self.constants,
        )
        if self.constants.tilt:  # never faster than the roofline
            tilted = math.exp(self.constants.tilt * token_log_ratio(tokens * self.token_groups))
            seconds *= max(tilted, largest_roofline_fraction(self.constants))
        return self.count * seconds

    def counts(self, shape: StepShape) -> tuple[float, float, Bound]:
        tokens, constants = all_tokens(shape), self.constants
        flops, moved, routed = self.work(tokens)
        slow = self.work(tokens, self.weight_slowdown)[1]
        bound = largest_bound(
            compute=flops / (constants.compute_fraction * self.flops_per_s),
            memory=slow / (constants.bandwidth_fraction * self.device.hbm_bytes_per_s)
            + routed / (constants.routed_fraction * self.device.hbm_bytes_per_s),
            launch=constants.fixed_s,
        )
        return flops, moved + routed, bound
