"""Input of a verb (command): the typed model and flags override a pasted command, which overrides a deployment file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from capacity.base.errors import InvalidInput
from capacity.base.mappings import omit, select
from capacity.cli.options import print_message, with_dashes

if TYPE_CHECKING:
    from capacity.base.spec import Spec
    from capacity.deployment import DeploymentFile
    from capacity.deployment.command_words import LaunchCommand

    AnySpec = TypeVar("AnySpec", bound=Spec)
    Answer = TypeVar("Answer")

Fields = Mapping[str, Any]
NO_MODEL = "no model: name one (`capacity models` lists them), or give --deployment or --from-launch"
NO_GPU = "no GPU: add --gpu NAME (`capacity gpus` lists them)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Input of a verb: the model name, the given flags of specs such as `Pool`, and options that many verbs share."""

    flags: Fields
    verb: str = ""
    model: str | None = None
    format: str = "table"
    detail: bool = False
    deployment: str | None = None
    from_launch: str | None = None
    write_deployment: str | None = None
    profiles: str | None = None
    download: bool = False
    change: tuple[str, ...] = ()

    def flags_of(self, spec: type[Spec]) -> Fields:
        """Return the given flags that are fields of `spec`."""
        return select(self.flags, spec.model_fields)

    def ask(self, function: Callable[..., Answer], *requests: object, **keywords: Any) -> Answer:
        """Return the answer of a library function, called with the GPU profiles and download option of this input."""
        return function(*requests, profiles=self.profiles, download=self.download, **keywords)

    @property
    def billing(self) -> Fields:
        """Return the given flags of `Billing` except the number of replicas, which belongs to the pool."""
        from capacity.deployment import Billing

        return omit(self.flags_of(Billing), "replicas")


def request_of(question: Question, *, as_flags: bool = True, **other_keywords: object) -> DeploymentFile:
    """Return the deployment that the user describes, and write it to a file if requested.

    Flags override a pasted command, which overrides the deployment file.

    `as_flags`: errors name fields as the command line does; `other_keywords`: further keywords of the verb's function.
    Raises InvalidInput, and MalformedFile for the file.
    """
    from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, read_deployment
    from capacity.deployment import write_deployment as write_file
    from capacity.deployment.command_words import LAUNCH_DEFAULTS

    stored = None if question.deployment is None else read_deployment(question.deployment)
    pasted_model, pasted = pasted_command(question.from_launch)
    defaults = {} if question.from_launch is None else LAUNCH_DEFAULTS
    pool = {**defaults, **pasted, **question.flags_of(Pool)}
    pools = () if stored is None else stored.pools
    if question.change:
        pool["gpu"] = changed_gpu(pool.get("gpu", pools[0].gpu if pools else None), question.change)
    if pool and len(pools) > 1:
        raise InvalidInput(
            f"{question.deployment} has {len(pools)} pools: set --{with_dashes(next(iter(pool)))} in the file"
        )
    model = question.model or pasted_model or (None if stored is None else stored.model)
    if model is None:
        raise InvalidInput(NO_MODEL)
    if stored is None and "gpu" not in pool:
        raise InvalidInput(NO_GPU)
    traffic, service, cost = (stored.traffic, stored.service, stored.cost) if stored else (None, None, None)
    first = merge_flags(Pool, pools[0] if pools else None, pool, as_flags=as_flags)
    request = DeploymentFile(
        schema="capacity/deployment/v1",
        model=model,
        pools=(first, *pools[1:]),
        traffic=merge_flags(Traffic, traffic, question.flags_of(Traffic), as_flags=as_flags),
        service=merge_flags(Service, service, question.flags_of(Service), as_flags=as_flags),
        cost=merge_flags(Cost, cost, question.flags_of(Cost), as_flags=as_flags),
    )
    if question.write_deployment is None:  # a file is for other verbs too
        _refuse_unread(question, request, pasted, as_flags=as_flags, **other_keywords)
    else:
        write_file(request, question.write_deployment)
    return request


def _refuse_unread(
    question: Question, request: DeploymentFile, pasted: Fields, *, as_flags: bool, **other_keywords: object
) -> None:
    """Raise InvalidInput for a flag that does not change the answer; report other unused settings on stderr."""
    from capacity.deployment import Billing, build
    from capacity.deployment.used_fields import ALWAYS_ALLOWED, reject_unused_fields, unused_fields

    said = (*request.pools, request.traffic, request.service, request.cost)
    billing = question.billing
    specs = (build(Billing, billing, flags=as_flags), *said) if billing else said
    reject_unused_fields(question.verb, specs, question.flags, **other_keywords)
    noted = [*pasted, *(name for name in ALWAYS_ALLOWED if name in question.flags)]
    note("not used", (f"--{with_dashes(name)}" for name in unused_fields(question.verb, said, noted)))


def changed_gpu(gpu: str | None, changes: Iterable[str]) -> str:
    """Return a GPU's name with the changes of --change added. Raises InvalidInput unless exactly one GPU is given."""
    if gpu in (None, "all"):
        raise InvalidInput("--change needs one GPU: add --gpu NAME (`capacity gpus` lists them)")
    assert gpu is not None
    return "+".join([gpu, *changes])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeployment:
    """A deployment of one pool, from a file or a pasted command: its model, specs, and the fields that were set."""

    model: str | None
    specs: tuple[Spec, ...]
    fields: Fields


def stored_deployment(deployment: str | None, from_launch: str | None, flags: Fields) -> StoredDeployment:
    """Return a file's deployment, overridden by a pasted command.

    `flags` override both, but only in the result's `specs`.

    Raises InvalidInput for several pools, and the errors of `request_of`.
    """
    from capacity.deployment import Cost, Pool, Service, Traffic, read_deployment

    stored = None if deployment is None else read_deployment(deployment)
    model, pasted = pasted_command(from_launch)
    pools = () if stored is None else stored.pools
    if len(pools) > 1:
        raise InvalidInput(f"{deployment} has {len(pools)} pools, but this command takes one: keep one")
    gpu = flags.get("gpu", pasted.get("gpu", "-"))  # a pasted line may name none
    parts: dict[type[Spec], Spec | None] = dict.fromkeys((Pool, Traffic, Service, Cost))
    if stored is not None:
        parts = {Pool: pools[0], Traffic: stored.traffic, Service: stored.service, Cost: stored.cost}
        model = model or stored.model
    fields: dict[str, object] = {}
    specs = []
    for spec, part in parts.items():
        set_in_file = set() if part is None else part.model_fields_set
        own = {name: getattr(part, name) for name in spec.model_fields if name in set_in_file}
        own |= pasted if spec is Pool else {}
        needed = {"gpu": gpu} if spec is Pool else {}
        checked = merge_flags(spec, None, {**needed, **own}, as_flags=True)
        set_there = checked.model_fields_set.difference(needed.keys() - own.keys())
        fields |= {name: getattr(checked, name) for name in spec.model_fields if name in set_there}
        said = select(flags, spec.model_fields)
        specs.append(merge_flags(spec, None, {**needed, **own, **said}, as_flags=True))
    return StoredDeployment(model=model, specs=tuple(specs), fields=fields)


def merge_flags(spec: type[AnySpec], stored: AnySpec | None, flags: Fields, *, as_flags: bool) -> AnySpec:
    """Return the spec `stored`, or a new one if it is None, with fields overridden by `flags`. Raises InvalidInput."""
    from capacity.deployment import build

    if stored is None:
        return build(spec, flags, flags=as_flags)
    if not flags:
        return stored
    kept = {name: getattr(stored, name) for name in stored.model_fields_set}
    return build(spec, {**kept, **flags}, flags=as_flags)


def pasted_command(text: str | None) -> tuple[str | None, Fields]:
    """Return the model and the `Pool` fields of a pasted launch command; report ignored parts on stderr."""
    if text is None:
        return None, {}
    from capacity.deployment.launch_command import read_launch

    command = read_launch(text)
    note_command(command)
    gpu = {} if command.gpu is None else {"gpu": command.gpu}
    return command.model, {**gpu, **command.fields}


def note_command(command: LaunchCommand) -> None:
    """Report on stderr which parts of a pasted command are ignored, and for which reason."""
    note("ignored because it does not change any answer", command.ignored)
    note("not modelled", command.not_modelled)
    note("unknown and ignored", command.unknown)


def note(what: str, names: Iterable[str]) -> None:
    """Print one line on stderr with a reason (`what`) and the names that have no effect, if there are any."""
    if names := list(names):
        print_message(f"{what}: {', '.join(names)}")
