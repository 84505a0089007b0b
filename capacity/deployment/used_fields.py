"""Reject fields that do not affect the answer of a command, instead of ignoring them.

A field declares the computation that uses it, such as the memory plan, the step times or the price (`read_by`; none:
all of them), and its requirements on other fields (`needs`). The registry lists the computations of each command. The
command line and the Python API call this module with the names of the fields that the user wrote; a deployment file
may contain more.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

from pydantic.fields import FieldInfo

from capacity.base.errors import InvalidInput
from capacity.base.registry import BY_NAME
from capacity.base.spec import Spec
from capacity.deployment.field_flags import Need, Part, field_needs, reading_part

# computations of a verb: always, or only with one of these fields
Parts = Mapping[Part, tuple[Need, ...]]

LOADS = (Need("concurrency"), Need("request_rate"))
CLOSED_FORM: Parts = {"memory": (), "limits": (), "steps": (), "price": (), "rate": ()}
SIMULATED: Parts = dict.fromkeys(
    ("memory", "limits", "steps", "schedule", "host_memory", "drafts", "rounds", "price", "rate"), ()
)
DEPLOYED: Parts = {**SIMULATED, "roles": (), "routes": ()}
ESTIMATE: Parts = {**CLOSED_FORM, "drafts": (), "rounds": (), "schedule": LOADS, "host_memory": LOADS}
PARTS_BY_READING: Mapping[
    str, Parts
] = {  # by the value of a verb's `reads` in the registry; empty: all computations
    "": DEPLOYED,
    "NOTHING": {},
    "FIT": {"memory": (), "limits": (), "host_memory": (), "drafts": ()},
    "ESTIMATE": ESTIMATE,
    "FRONTIER": {**ESTIMATE, "schedule": (), "host_memory": ()},
    "CLOSED_FORM": CLOSED_FORM,
    "SPECULATE": {**CLOSED_FORM, "drafts": (), "rounds": (), "schedule": (Need("simulate"),)},
    "BATCHING": {**CLOSED_FORM, "schedule": ()},
    "SIMULATED": SIMULATED,
    "CURVE": {**SIMULATED, "rate": (Need("arrivals", ("on-off", "ramp", "diurnal")),)},
    "DEPLOYED": DEPLOYED,
}
PART_NAMES: Mapping[Part, str] = {
    "memory": "a memory plan",
    "limits": "an engine's limits",
    "steps": "step times",
    "drafts": "speculative decoding",
    "roles": "separate prefill and decode engines",
    "routes": "a router that chooses between pools",
}
REPLACEMENT_FLAGS = {
    ("curve", "rate"): "--rates"
}  # flag that a verb has in place of fields that it does not use
FIELDS_SET_BY_OPTION = {  # options that set several fields
    "speculative_config": ("speculator", "draft", "num_speculative_tokens"),
    "enable_lora": ("max_loras",),
    "kv_transfer_config": ("role", "kv_offloading_size"),
    "override_generation_config": ("top_p", "top_k", "repetition_penalty"),
    "requests_per_day": ("request_rate",),
}
ALWAYS_ALLOWED = ("api_server_count",)  # common launch flags; a note says if they have no effect


def reject_unused_fields(
    question: str, specs: Iterable[Spec], given: Iterable[str], **other_keywords: object
) -> None:
    """Raise InvalidInput, in one line, for a given field that does not affect the answer of the command `question`.

    `specs`: all specs of the input, including those of a file. `given`: names of fields that the user wrote; fields at
    their default are allowed. `other_keywords`: other keywords of the command. A command that is not in the registry
    reads all fields.
    """
    asked = _GivenFields(specs, other_keywords)
    for name in given:
        if name in ALWAYS_ALLOWED:
            continue
        for field in FIELDS_SET_BY_OPTION.get(name, (name,)):
            if asked.is_set(field):
                _check_field(question, field, f"--{name.replace('_', '-')}", asked)


def unused_fields(question: str, specs: Iterable[Spec], given: Iterable[str]) -> Iterator[str]:
    """Yield the given fields that have no effect on the command's answer, including fields set to their default."""
    asked = _GivenFields(specs, {})
    for name in given:
        try:
            for field in FIELDS_SET_BY_OPTION.get(name, (name,)):
                _check_field(question, field, name, asked)
        except InvalidInput:
            yield name


def is_part_read(question: str, part: Part | None) -> bool:
    """Return whether a command can perform the computation `part`, such as `price`; True if `part` is None."""
    return part is None or part in parts_read(question)


def parts_read(question: str) -> Parts:
    """Return the computations of a command, such as `memory`, each with requirements on fields.

    A computation without requirements is always performed, any other only if at least one of them is met.
    """
    return PARTS_BY_READING[BY_NAME[question].reads if question in BY_NAME else ""]


class _GivenFields:
    """Values of all input fields by name, with defaults; with several pools, `replicas` is the number of pools."""

    def __init__(self, specs: Iterable[Spec], other_keywords: Mapping[str, object]) -> None:
        self.fields: dict[str, FieldInfo] = {}
        self._values: dict[str, object] = {}
        pools = 0
        for spec in specs:
            pools += "gpu" in type(spec).model_fields
            for name, field in type(spec).model_fields.items():
                value = getattr(spec, name)
                if name not in self.fields or value != field.default:
                    self._values[name] = value
                self.fields[name] = field
        if pools > 1:
            self._values["replicas"] = pools
        self._values |= {name: value for name, value in other_keywords.items() if value}

    def is_set(self, name: str) -> bool:
        """Return whether a field is present and not at its default."""
        default = self.fields[name].default if name in self.fields else None
        return name in self._values and self._values[name] != default

    def meets_any(self, needs: Iterable[Need]) -> bool:
        return any(self._meets(need) for need in needs)

    def _meets(self, need: Need) -> bool:
        value = self._values.get(need.field)
        if need.values:
            return value in need.values
        return self.is_set(need.field) and not (need.finite and value == math.inf)


def _check_field(question: str, name: str, flag: str, asked: _GivenFields) -> None:
    part, needs = reading_part(asked.fields[name]), field_needs(asked.fields[name])
    if part is not None:
        conditions = parts_read(question).get(part)
        if conditions is None:
            raise InvalidInput(
                f"{flag} has no effect without {PART_NAMES.get(part, 'a simulation')}, which `{question}` does not use"
                ": remove it, or use `capacity simulate`"
            )
        needs = needs if not conditions or asked.meets_any(conditions) else conditions
    if needs and not asked.meets_any(needs):
        own = None if part is None else REPLACEMENT_FLAGS.get((question, part))
        instead = "" if own is None else f"; `{question}` uses {own} instead"
        raise InvalidInput(f"{flag} has no effect without {_describe_needs(flag, needs)}{instead}")


def _describe_needs(flag: str, needs: tuple[Need, ...]) -> str:
    """Return the flags that would give `flag` an effect, and the advice to add one of them or remove `flag`."""
    *first, last = (need.words for need in needs)
    if first:
        return f"{', '.join(first)} or {last}: add one, or remove {flag}"
    return f"{last}: add it, or remove {flag}"
