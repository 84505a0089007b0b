"""Easier stand-ins for engines that are slow to simulate: what misses on one of these misses on the engine itself.

An engine that drafts cannot leap over its steps, and data-parallel ranks take theirs row by row. Each has a plain
engine beside it that does the same work at the same step times and is spared a part of the engine's troubles:

- drafts: a round is a token of a plain engine, for what is accepted of a request depends on nobody else; drafts take
  no place in the token budget or the KV cache, and contexts grow by one token a round.
- data-parallel ranks: one rank that holds as many requests, tokens and blocks as all of them, perfectly balanced, and
  whose prompts are spread over the ranks.

Step times of both lie on straight lines between knots, so that they can be leapt over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from capacity.answers.engine_setup import engine_setup
from capacity.planning.step_error import ScaledSteps
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import EngineSetup
from capacity.simulator.schedulers import DrawnSpeculation
from capacity.step import DecodePiece, StepShape
from capacity.workload import Workload

AT_A_TIME = 32  # verifications of a request that are drawn
MARGIN = 0.10  # of a limit: a stand-in must miss it by more


@dataclass(frozen=True, slots=True, kw_only=True)
class Easier:
    """A stand-in for one engine; `speculation` is what it spells out in rounds, None without drafts."""

    setup: EngineSetup
    speculation: DrawnSpeculation | None = None

    def traffic(self, workload: Workload) -> Workload:
        """The requests as the stand-in sees them: with a token for each round."""
        if self.speculation is None:
            return workload
        rounds = rounds_of(self.speculation, workload.output_tokens - 1)
        return replace(workload, output_tokens=rounds + 1)


def easier(resolved: ResolvedPool, steps: ScaledSteps, workload: Workload) -> Easier | None:
    """The stand-in for an engine of the pool, whose `steps` it takes.

    None where the engine can leap as it is, or answers are part of later prompts.
    """
    setup = engine_setup(resolved)
    ranks, speculation = setup.data_parallel_size, setup.speculation
    if (ranks == 1 and speculation is None) or workload.session is not None:
        return None
    if isinstance(speculation, DrawnSpeculation):
        rounds = RoundSteps(steps, speculation.k)
        return Easier(setup=replace(setup, step_times=rounds, speculation=None), speculation=speculation)
    limits = replace(
        setup.limits,
        max_num_seqs=ranks * setup.limits.max_num_seqs,
        max_num_batched_tokens=ranks * setup.limits.max_num_batched_tokens,
    )
    pooled = replace(
        setup,
        step_times=PooledSteps(steps, ranks),
        num_blocks=ranks * setup.num_blocks,
        data_parallel_size=1,
        limits=limits,
    )
    return Easier(setup=pooled)


def rounds_of(speculation: DrawnSpeculation, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Verifications that so many tokens of each request, by number, take: the very draws of the engine."""
    left, rounds = tokens.copy(), np.zeros_like(tokens)
    active = np.flatnonzero(left > 0)
    while len(active):
        verifications = rounds[active, None] + np.arange(AT_A_TIME)
        accepted = speculation.accepted_by(
            np.broadcast_to(active[:, None], verifications.shape), verifications
        )
        reached = np.cumsum(accepted + 1, axis=1)
        rounds[active] += np.minimum((reached < left[active, None]).sum(axis=1) + 1, AT_A_TIME)
        left[active] -= reached[:, -1]
        active = active[left[active] > 0]
    return rounds


class RoundSteps:
    """Steps whose decode rows each verify `nodes` drafts as well, asked for as plain ones."""

    def __init__(self, steps: ScaledSteps, nodes: int) -> None:
        self._steps = steps
        self._nodes = nodes

    def step_ps(self, shape: StepShape) -> int:
        piece = None if shape[1] else self.decode_piece(shape)
        if piece is None:
            return self._steps.step_ps(self._drafted(shape))
        return piece.base_ps + piece.context_ps * shape[9]

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:
        """The line that drafted steps lie on; None where a window clips some contexts."""
        return None if shape[9] != shape[10] else self._steps.drafted_piece(self._drafted(shape))

    def _drafted(self, shape: StepShape) -> StepShape:
        return shape._replace(draft_tokens=shape[7] * self._nodes)


class PooledSteps:
    """Steps of data-parallel ranks together, their rows shared out evenly: asked for as those of one engine."""

    def __init__(self, steps: ScaledSteps, ranks: int) -> None:
        self._steps = steps
        self._ranks = ranks

    def step_ps(self, shape: StepShape) -> int:
        if not shape[1]:
            piece = self.decode_piece(shape)
            return piece.base_ps + piece.context_ps * shape[9] + piece.window_context_ps * shape[10]
        prompts = min(shape[0], self._ranks)
        decodes = [value // self._ranks for value in shape[7:]]
        busy = StepShape(*(value // prompts for value in shape[:7]), *decodes)
        idle = StepShape(*(0,) * 7, *decodes)
        return self._steps.joint_ps((busy,) * prompts + (idle,) * (self._ranks - prompts))

    def decode_piece(self, shape: StepShape) -> DecodePiece:
        """A rank's own line, with its share of the rows and contexts of all."""
        used = min(shape[7], self._ranks)
        context, window = shape[9] // used, shape[10] // used
        piece = self._steps.decode_piece(
            StepShape(
                decode_sequences=shape[7] // used,
                decode_context_tokens=context,
                decode_window_context_tokens=window,
            )
        )
        assert piece is not None
        return DecodePiece(
            base_ps=piece.base_ps,
            context_ps=piece.context_ps // used,
            window_context_ps=piece.window_context_ps // used,
            max_context_tokens=_last(piece.max_context_tokens, used),
            max_window_context_tokens=_last(piece.max_window_context_tokens, used),
        )


def _last(limit: int | None, shares: int) -> int | None:
    """The largest sum of which a share, rounded down, is within `limit`."""
    return None if limit is None else limit * shares + shares - 1
