"""Deployment file (TOML): a model, its pools, traffic, service and price, to store, share and compare."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import is_file, read_bytes, read_toml
from capacity.base.output_files import write_file
from capacity.base.spec import Spec
from capacity.base.toml_text import toml_value
from capacity.deployment.building import explain
from capacity.deployment.cost import Cost
from capacity.deployment.pool import Pool
from capacity.deployment.service import Service
from capacity.deployment.traffic import Traffic
from capacity.deployment.use_cases import SPREAD_FIELDS

FILE_SCHEMA: Literal["capacity/deployment/v1"] = "capacity/deployment/v1"


class DeploymentFile(Spec):
    """A deployment with its traffic and price, as a TOML file.

    `model` applies to every pool without its own model.
    """

    schema_: Literal["capacity/deployment/v1"] = Field(FILE_SCHEMA, alias="schema")
    model: str
    pools: tuple[Pool, ...] = Field(min_length=1)
    traffic: Traffic = Traffic()
    service: Service = Service()
    cost: Cost = Cost()

    @model_validator(mode="before")
    @classmethod
    def _move_single_pool_model(cls, fields: Any) -> Any:
        """In a file with a single pool, move the pool's model to the top level."""
        pools = fields.get("pools") if isinstance(fields, dict) else None
        if not isinstance(pools, list | tuple) or len(pools) != 1:
            return fields
        (pool,) = pools
        if isinstance(pool, Pool) and pool.model is not None:
            return {**fields, "model": pool.model, "pools": (pool.model_copy(update={"model": None}),)}
        if isinstance(pool, dict) and "model" in pool:
            rest = {name: value for name, value in pool.items() if name != "model"}
            return {**fields, "model": pool["model"], "pools": (rest,)}
        return fields


def read_deployment(path: str | Path) -> DeploymentFile:
    """Read a deployment file.

    Raises MalformedFile with the field and its value if the file is invalid.
    """
    fields = read_toml(path, "a deployment")
    try:
        return DeploymentFile.model_validate(fields)
    except ValidationError as error:
        raise MalformedFile(path, explain(error, DeploymentFile)) from None


def write_deployment(deployment: DeploymentFile, path: str | Path) -> None:
    """Write a deployment file without fields at their defaults; reading it returns an equal record.

    Raises InvalidInput if the file cannot be written, or if it exists and is not a deployment.
    """
    try:
        content = read_bytes(path, "a deployment", cut=True).strip() if is_file(Path(path)) else b""
        if content and FILE_SCHEMA.rpartition("/")[0].encode() not in content:
            raise InvalidInput(f"{path} exists and is not a deployment file: use another path, or remove it")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
    write_file(path, to_toml(deployment))


def to_toml(deployment: DeploymentFile) -> str:
    """Return the text of a deployment file."""
    lines = [f"schema = {toml_value(FILE_SCHEMA)}", f"model = {toml_value(deployment.model)}"]
    for pool in deployment.pools:
        lines += ["", "[[pools]]", *_assignments(pool)]
    tables = {"traffic": deployment.traffic, "service": deployment.service, "cost": deployment.cost}
    for name, spec in tables.items():
        if assignments := _assignments(spec):
            lines += ["", f"[{name}]", *assignments]
    return "\n".join(lines) + "\n"


def _assignments(spec: Spec) -> list[str]:
    given, fields = spec.model_dump(exclude_unset=True), type(spec).model_fields
    kept = {n: v for n, v in given.items() if n in SPREAD_FIELDS or getattr(spec, n) != fields[n].default}
    return [f"{name} = {toml_value(value)}" for name, value in kept.items()]
