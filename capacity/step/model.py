"""The step model: a model on GPUs under an engine, and the time of each of its steps.

It is the only module that combines a model, a GPU and an engine. A step time is the sum of its operators, the launch
time that exceeds the GPU time, and the engine's own work between steps. `step_seconds` returns the sum and `step_cost`
its parts.
"""

import bisect
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Literal

from capacity.base.errors import UnsupportedModel
from capacity.hardware.coefficients import Residuals
from capacity.step import Bound, DecodePiece, OpCost, StepCost, StepShape, picoseconds
from capacity.step.export import ModelData, graph_rows, operators_data
from capacity.step.launches import launch_lag
from capacity.step.layers import build_operators
from capacity.step.layers.builder import Builder
from capacity.step.layers.vision import EncoderOperator, encoder_operator
from capacity.step.operators import Operator, p_norm
from capacity.step.row_counts import all_tokens, sampled_tokens
from capacity.step.setting import StepSetting
from capacity.step.shape import without_kv_cache

CACHE_ENTRIES = 1 << 16
COSTS_KEPT = 1 << 9  # cost tables by number of rows: the decode steps of a run have few distinct numbers
KNOT_BITS = 4  # leading bits of a context sum that form a knot; between knots, decode time is linear


class StepModel:
    """Step times of one engine.

    With pipeline parallelism, a step is the pass of one batch through all stages.

    `error_factor`: possible error of kernels that only third parties measured (`StepSetting.remarks`). `unmeasured`:
    possible error factors of whole steps, by reason (a chip without measured kernels, weights or layers in host
    memory). `notes`: substitutes for missing kernels or constants. `launch_lag`: fraction of a prefill step's time for
    which the results of the previous step wait (`capacity.step.launches`). `basis`: "assumed" for GPUs whose facts the
    user changed, and if some kernels were only measured by third parties on other GPUs (`weight_kernels.toml`);
    "calibrated" if the profile has constants fitted on this GPU; else "analytic".

    Raises InvalidInput if the GPU cannot run the format, or if the profile contains another GPU's fit.
    """

    def __init__(self, setting: StepSetting) -> None:
        self.model = setting.model
        self.profile = setting.profile
        self.host = setting.host_time()
        self.ranks = setting.data_parallel_size
        self.launch_lag = launch_lag(setting)
        self._use_cache = setting.use_cache
        # without a KV cache no two steps have the same shape, so no graphs
        graphs = setting.use_cache and not setting.enforce_eager
        self._graph_sizes = self.host.graph_sizes if graphs else ()
        build = Builder(setting)
        self._lookup = build.lookup
        self._build = build
        operators = build_operators(build)
        self._operators = operators
        self.error_factor = build.error_factor
        self.unmeasured = setting.unmeasured_factors()
        self.ttft_unmeasured = setting.unmeasured_factors("prefill")
        self.shared_seconds = make_seconds(operators.shared)
        self.row_seconds = make_seconds(operators.per_token)
        self.sample_seconds = make_seconds(operators.per_sample)
        self.row_costs = _make_costs(operators.per_token + operators.shared)
        self.sample_costs = _make_costs(operators.per_sample)
        self.notes = operators.notes + setting.crossing_notes() + self.peak_notes
        self._pieces: dict[tuple[int, int, int, int], DecodePiece] = {}
        self.step_seconds = lru_cache(maxsize=CACHE_ENTRIES)(self._step_seconds)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the kernels whose constants were measured on another GPU or engine, or are those for all GPUs."""
        return tuple(dict.fromkeys(self._lookup.assumed))

    @property
    def peak_notes(self) -> tuple[str, ...]:
        """Return a note if operators of the calibrated server are faster than the GPU's peak rates allow."""
        if not self._lookup.above_peak:
            return ()
        operators = ", ".join(dict.fromkeys(self._lookup.above_peak)).replace("_", " ")
        return (
            f"the measured server is faster than the datasheet of {self.profile.name} allows ({operators}): check the "
            "GPU, its profile, the number of GPUs and prefix caching",
        )

    @property
    def basis(self) -> Literal["analytic", "calibrated", "assumed"]:
        """Return "assumed", "calibrated" or "analytic", as the class describes."""
        if self.error_factor > 1 or self.profile.is_hypothetical:
            return "assumed"
        return "calibrated" if self._lookup.own_sources else "analytic"

    def residuals(self, phase: Literal["prefill", "decode"]) -> Residuals:
        """Return the 5 % and 95 % quantiles of measured / predicted - 1 for steps of this phase."""
        regime = "decode_moe" if phase == "decode" and self.model.is_moe else phase
        unmeasured = self.ttft_unmeasured if phase == "prefill" else self.unmeasured
        return self._lookup.residuals(regime).widen(max(self.error_factor, *unmeasured.values(), 1.0))

    def _computed_shape(self, shape: StepShape) -> StepShape:
        """Return the shape that the engine computes; without a KV cache, that is all tokens of the requests."""
        if self._use_cache:
            return shape
        return without_kv_cache(shape, window_tokens=self.model.window_tokens)

    def _step_seconds(self, shape: StepShape) -> float:
        shape = self._computed_shape(shape)
        rows = shape[1] + shape[7] + shape[8]
        if rows <= 0:
            return 0.0
        gpu, launch, host = self._parts(shape, rows)
        return gpu + launch + host + self._encoded_seconds(shape)

    def _encoded_seconds(self, shape: StepShape) -> float:
        """Return the seconds to encode the images and audio clips of a step, which are added to its time."""
        if not (shape[11] or shape[13]):
            return 0.0
        return sum(encoder.seconds(shape) for encoder in self._encoders)

    @cached_property
    def _encoders(self) -> tuple[EncoderOperator, ...]:
        """Return the operators of the vision and audio encoders, built at first use."""
        if not self.model.towers:
            raise UnsupportedModel(self.model.model_type, "its vision or audio encoder is not supported")
        return tuple(encoder_operator(self._build, tower) for tower in self.model.towers)

    def _parts(self, shape: StepShape, rows: int) -> tuple[float, float, float]:
        """Return the seconds of GPU, kernel launches and host work; the last two without their overlap with the GPU."""
        padded_rows = self._graph_rows(shape, rows)
        gpu = self._own_seconds(shape, padded_rows or rows)
        if self._operators.shared:
            gpu += self.shared_seconds(float(padded_rows or rows))
        return self._add_host_time(gpu, sequences=shape[0] + shape[7], replayed=padded_rows is not None)

    def _own_seconds(self, shape: StepShape, rows: int) -> float:
        """Return the GPU time (s) of one rank's operators except the `shared` ones, with rows padded to `rows`."""
        gpu = self.row_seconds(rows) + self.sample_seconds(shape[6] + shape[7] + shape[8])
        for operator in self._operators.per_context:
            gpu += operator.seconds(shape)
        return gpu

    def _add_host_time(self, gpu: float, *, sequences: int, replayed: bool) -> tuple[float, float, float]:
        eager = 0.0 if replayed else self.host.eager_s
        sharpness = self.host.overlap_sharpness
        launch = p_norm(gpu, eager, sharpness) - gpu if eager else 0.0
        waiting = 0.0 if replayed else self.host.waiting_s
        host = self.host.step_s + self.host.per_sequence_s * sequences
        if self.host.overlapped:  # one CPU does both: its times add up and overlap with the GPU together
            host = p_norm(gpu, eager + host, sharpness) - gpu - launch
        serial = self.host.serial_s + self.host.serial_per_sequence_s * sequences
        return gpu, launch + waiting, host + serial

    def _graph_rows(self, shape: StepShape, rows: int) -> int | None:
        """Return the rows of the CUDA graph that this step replays, or None if it runs eagerly."""
        sizes = self._graph_sizes
        if not sizes or rows > sizes[-1] or (shape[1] and not self.host.graphs_for_prefill):
            return None
        size = sizes[bisect.bisect_left(sizes, rows)]
        return size if self.host.graph_padding or size == rows else None

    def graph_rows(self, rows: int) -> int | None:
        """Return the rows of the CUDA graph that a decode step of `rows` rows replays, or None if it runs eagerly."""
        return self._graph_rows(StepShape(decode_sequences=rows), rows)

    @property
    def largest_graph(self) -> int | None:
        """Return the rows of the largest CUDA graph, or None if no step replays one."""
        return self._graph_sizes[-1] if self._graph_sizes else None

    @property
    def largest_prefill_graph(self) -> int | None:
        """Return the most rows of a step with prompts that replays a CUDA graph; None if no such step does."""
        return self.largest_graph if self.host.graphs_for_prefill else None

    def step_cost(self, shape: StepShape) -> StepCost:
        """Return the cost table whose seconds add up to `step_seconds(shape)`."""
        shape = self._computed_shape(shape)
        rows = shape.num_tokens
        if rows <= 0:
            return StepCost(operators=())
        _, launch, host = self._parts(shape, rows)
        costs = [*self.row_costs(self._graph_rows(shape, rows) or rows)]
        costs += [operator.cost(shape) for operator in self._operators.per_context]
        costs += self.sample_costs(shape.sampled_tokens)
        if shape.encoder_tokens or shape.audio_tokens:
            costs += [encoder.cost(shape) for encoder in self._encoders]
        costs.append(_time_only("launch gaps", launch, "launch"))
        costs.append(_time_only("host", host, "host"))
        return StepCost(operators=tuple(cost for cost in costs if cost.seconds > 0))

    def copy_seconds(self, moved_bytes: float) -> float:
        """Return the seconds of one copy kernel in GPU memory; `moved_bytes` counts reads and writes together."""
        if moved_bytes <= 0:
            return 0.0
        return self._build.traffic("copy", kernels=1.0, bytes_per_row=moved_bytes).seconds(_row_shape(1.0))

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        """Return the time of one step of all data-parallel ranks, in seconds; `shapes` has one shape per rank.

        For equal shapes it is `step_seconds` of any of them. Each layer waits for its slowest rank before tokens are
        exchanged, and layers of a kind are identical, so the rank with the longest own time determines the step time.
        All ranks replay a CUDA graph of the fullest rank's size, or all run eagerly; a rank without work computes a
        dummy row. Source: vLLM 0.33, v1/worker/dp_utils.py.
        """
        shapes = [self._computed_shape(shape) for shape in shapes]
        rows = [shape[1] + shape[7] + shape[8] for shape in shapes]
        if not any(rows):
            return 0.0
        fullest = max(rows)
        mixed = StepShape(prefill_tokens=sum(shape[1] for shape in shapes))
        padded = self._graph_rows(mixed, fullest)
        computed = [padded or max(count, 1) for count in rows]
        gpu = max(
            self._own_seconds(shape, count)
            for shape, real, count in zip(shapes, rows, computed, strict=True)
            if real
        )
        if self._operators.shared:
            gpu += self.shared_seconds(sum(computed) / len(computed))
        sequences = max(shape[0] + shape[7] for shape in shapes)
        gpu, launch, host = self._add_host_time(gpu, sequences=sequences, replayed=padded is not None)
        encoded = max(self._encoded_seconds(shape) for shape in shapes)
        return gpu + launch + host + encoded

    def joint_ps(self, shapes: Sequence[StepShape]) -> int:
        """Return `joint_seconds` in whole picoseconds."""
        return max(1, picoseconds(self.joint_seconds(shapes)))

    def step_ps(self, shape: StepShape) -> int:
        """Return the step time in whole picoseconds; for pure decode, from the step's `decode_piece`."""
        if shape[7] and not shape[1]:
            piece = self.decode_piece(shape)
            return piece.base_ps + piece.context_ps * shape[9] + piece.window_context_ps * shape[10]
        return max(1, picoseconds(self._step_seconds(shape)))  # no cache: shapes with a prefill rarely repeat

    def decode_piece(self, shape: StepShape) -> DecodePiece:
        """Return this step's time as an affine function of its context sums, up to the next interpolation points."""
        context, window = shape[9], shape[10]
        low, width = _knot(context)
        window_low, window_width = (low, width) if window == context else _knot(window)
        key = (shape[7], shape[8], low, window_low)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._piece(shape, low, width, window_low, window_width)
        return piece

    def _piece(
        self, shape: StepShape, low: int, width: int, window_low: int, window_width: int
    ) -> DecodePiece:
        def seconds(context: int, window: int) -> float:
            contexts = {"decode_context_tokens": context, "decode_window_context_tokens": window}
            return self._step_seconds(StepShape(decode_sequences=shape[7], draft_tokens=shape[8], **contexts))

        base = seconds(low, window_low)
        slope = picoseconds((seconds(low + width, window_low) - base) / width)
        window_slope = picoseconds((seconds(low, window_low + window_width) - base) / window_width)
        return DecodePiece(
            base_ps=max(1, picoseconds(base)) - slope * low - window_slope * window_low,
            context_ps=slope,
            window_context_ps=window_slope,
            max_context_tokens=low + width - 1,
            max_window_context_tokens=window_low + window_width - 1,
        )

    def step_data(self) -> ModelData | None:
        """Return this model as data for the compiled simulator.

        None if an operator has no formula there, or if the engine runs without a KV cache.
        """
        own = self._operators
        if not self._use_cache:
            return None
        by_context = operators_data(own.per_context, None)
        if by_context is None:
            return None
        return ModelData(
            host=self.host,
            graph_rows=graph_rows(tuple(self._graph_sizes), padding=self.host.graph_padding),
            ranks=self.ranks,
            has_shared=bool(own.shared),
            context_operators=by_context,
            row_operators=operators_data(own.per_token, all_tokens),
            sample_operators=operators_data(own.per_sample, sampled_tokens),
            shared_operators=operators_data(own.shared, all_tokens),
        )


def _knot(tokens: int) -> tuple[int, int]:
    """Return the largest knot (point of linear interpolation) that is at most `tokens`, and the distance to the next.

    From one power of two to the next there are 2**(KNOT_BITS - 1) knots.
    """
    bits = tokens.bit_length() - KNOT_BITS
    return (tokens >> bits << bits, 1 << bits) if bits > 0 else (tokens, 1)


def make_seconds(operators: tuple[Operator, ...]) -> Callable[[float], float]:
    """Return a cached function from a number of rows to the operators' total seconds.

    It adds from left to right on every Python version. (`sum` compensates rounding errors since Python 3.12.)
    """

    @lru_cache(maxsize=CACHE_ENTRIES)
    def seconds(rows: float) -> float:
        shape, total = _row_shape(rows), 0.0
        for operator in operators:
            total += operator.seconds(shape)
        return total

    return seconds


def _make_costs(operators: tuple[Operator, ...]) -> Callable[[float], tuple[OpCost, ...]]:
    """Return a cached function from a number of rows to the operators' entries in the cost table."""
    return lru_cache(maxsize=COSTS_KEPT)(
        lambda rows: tuple(each.cost(_row_shape(rows)) for each in operators)
    )


def _row_shape(rows: float) -> StepShape:
    """Return a step shape of `rows` sampled rows, for operators that depend only on rows; `rows` may be fractional."""
    return StepShape(draft_tokens=rows)  # type: ignore[arg-type]


def _time_only(name: str, seconds: float, bound: Bound) -> OpCost:
    return OpCost(name=name, flops=0.0, bytes=0.0, seconds=seconds, bound=bound)
