"""Campaign files: the cases to run on a device, ordered so that a run that ends early has a balanced sample."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.external_files import is_file, outside_path, read_toml
from capacity.base.spec import Spec
from capacity_validate.cases import Case, make_case
from capacity_validate.kernels import MODULES

Count = Annotated[int, Field(ge=1)]


class KernelGroup(Spec):
    """Cases of one operator: every shape with every combination of sizes in `grid`, for every kernel and variant.

    `value` is the group's weight in the time budget. A group with twice the value is scheduled twice as often.
    """

    operator: str
    kernels: Annotated[tuple[str, ...], Field(min_length=1)]
    variants: Annotated[tuple[str, ...], Field(min_length=1)] = ("",)
    shapes: Annotated[tuple[dict[str, Count], ...], Field(min_length=1)] = ({},)
    grid: dict[str, tuple[Count, ...]] = Field(default_factory=dict)
    value: Annotated[float, Field(gt=0)] = 1.0

    def cases(self) -> list[Case]:
        combinations = [dict(zip(self.grid, point, strict=True)) for point in product(*self.grid.values())]
        return [
            make_case(self.operator, kernel, variant=variant, **shape, **combination)
            for kernel, variant, shape, combination in product(
                self.kernels, self.variants, self.shapes, combinations
            )
        ]


class DecodePoint(Spec):
    batch: Count
    context: Count


class TransformerStage(Spec):
    """Steps of a random-weight model to time: prefills by prompt length, decodes by batch size and context."""

    model: str
    max_layers: Count | None = None
    prefill: tuple[Count, ...] = ()
    decode: tuple[DecodePoint, ...] = ()
    kv_tokens: Count = 16384


class ServingStage(Spec):
    """A short run of the harness's continuous-batching loop, with Poisson arrivals and uniform length distributions."""

    requests: Count
    load_fraction: Annotated[float, Field(gt=0, lt=1.5)]  # fraction of the predicted throughput
    prompt_tokens: tuple[Count, Count]
    output_tokens: tuple[Count, Count]
    max_num_seqs: Count = 8
    max_num_batched_tokens: Count = 512
    repeats: Count = 1


class SpeculationStage(Spec):
    """Speculative decoding with a draft model that agrees with the target model at controlled rates (`agreements`)."""

    draft_tokens: tuple[Count, ...] = (2, 4)
    agreements: tuple[float, ...] = (0.5, 0.8)
    output_tokens: Count = 64
    distribution_samples: Count = 4000


class CollectiveStage(Spec):
    """Collectives among `ranks` processes: NCCL on two or more GPUs, gloo on the CPU of one machine."""

    ranks: Annotated[int, Field(ge=2)] = 2  # on GPUs: all available ones
    message_bytes: tuple[Count, ...] = (8192, 1048576)


class DevicePlan(Spec):
    """The measurements of a campaign for one kind of device: CPU, or CUDA GPU."""

    passes: Count = 1
    case_s: Annotated[float, Field(gt=0)] = 0.05  # timed seconds of one case in one pass
    kernels: tuple[KernelGroup, ...] = ()
    transformer: TransformerStage | None = None
    unseen: TransformerStage | None = None  # a second model; its steps are predicted, never fitted
    serving: ServingStage | None = None
    speculation: SpeculationStage | None = None
    collectives: CollectiveStage | None = None
    techniques: bool = True
    memory: bool = True


class Campaign(Spec):
    """One campaign file. If it `extends` another campaign, it adds kernels to it and overrides its other settings."""

    name: str
    description: str
    budget_s: Annotated[float, Field(gt=0)]
    cpu: DevicePlan
    cuda: DevicePlan

    def plan(self, kind: Literal["cpu", "cuda"]) -> DevicePlan:
        return self.cpu if kind == "cpu" else self.cuda


def use_fp16(plan: DevicePlan) -> DevicePlan:
    """Return the plan with fp16 in place of bf16, for GPUs without bf16 instructions; engines use fp16 there too."""
    groups = tuple(
        group.model_copy(
            update={"kernels": tuple(dict.fromkeys("fp16" if k == "bf16" else k for k in group.kernels))}
        )
        for group in plan.kernels
    )
    return plan.model_copy(update={"kernels": groups})


def campaigns_directory() -> Path:
    """Return the folder of bundled campaigns: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parent
    inside = package / "campaigns"
    return inside if inside.is_dir() else package.parent / "campaigns"


def campaign_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in campaigns_directory().glob("*.toml")))


def load_campaign(name: str) -> Campaign:
    """Load a bundled campaign by name, or a TOML file by path. Raises UnknownName or MalformedFile."""
    path = outside_path(name) if name.endswith(".toml") else campaigns_directory() / f"{name}.toml"
    if not is_file(path) and not (name.endswith(".toml") and path.exists()):
        if name.endswith(".toml"):
            raise MalformedFile(path, "no such campaign file")
        raise UnknownName("campaign", name, campaign_names())
    try:
        campaign = Campaign.model_validate(_read_merged_tables(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedFile(path, first["msg"], where=where) from None
    for group in (*campaign.cpu.kernels, *campaign.cuda.kernels):
        if group.operator not in MODULES:
            known = ", ".join(MODULES)
            raise MalformedFile(path, f"no kernel for operator {group.operator!r}; known: {known}")
    return campaign


def _read_merged_tables(path: Path, depth: int = 0) -> dict[str, Any]:
    """Return the tables of a campaign file, merged with those of the campaign that the file extends."""
    own = read_toml(path, "a campaign")
    extended = own.pop("extends", None)
    if extended is None:
        return own
    if extended not in campaign_names() or depth > 3:
        raise MalformedFile(path, f"extends {extended!r}, which is not a bundled campaign", where="extends")
    merged = _read_merged_tables(campaigns_directory() / f"{extended}.toml", depth + 1)
    for key, value in own.items():
        if key in ("cpu", "cuda") and isinstance(value, dict):
            kernels = [*merged[key].get("kernels", []), *value.get("kernels", [])]
            merged[key] = {**merged[key], **value, "kernels": kernels}
        else:
            merged[key] = value
    return merged


def order_cases(plan: DevicePlan) -> list[Case]:
    """Return the cases of all groups, interleaved in proportion to each `value`; a group's first cases span all its
    sizes."""
    queue: list[tuple[float, int, Case]] = []
    for index, group in enumerate(plan.kernels):
        for turn, case in enumerate(order_bit_reversed(group.cases())):
            queue.append(((turn + 1) / group.value, index, case))
    queue.sort(key=lambda entry: entry[:2])
    return list(dict.fromkeys(case for _, _, case in queue))


def order_bit_reversed(cases: Sequence[Case]) -> list[Case]:
    """Return cases in bit-reversed order (first, last, middle, quarters, ...), so that a short run covers the range."""
    count = len(cases)
    bits = max(1, (count - 1).bit_length())
    positions = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(1 << bits)]
    order = [p for p in positions if p < count]
    if count > 1:
        order = [0, count - 1, *(p for p in order if p not in (0, count - 1))]
    return [cases[p] for p in order]


def parse_budget(text: str, flag: str = "--budget") -> float:
    """Return the seconds of a duration such as `60`, `60s`, `5m` or `1h`. Raises InvalidInput."""
    units: Mapping[str, float] = {"s": 1, "m": 60, "h": 3600}
    body, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "s")
    try:
        seconds = float(body) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{flag} is {text!r}: must be a time such as 60s, 5m or 1h")
    return seconds
