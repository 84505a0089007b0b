"""Files of a plan in the formats of other tools: read back as the planned pools, and correct by published schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from form_schemas import DEPLOYMENTS, EXTRACT, MODEL, SCHEMAS, mistakes, texts, written

from capacity.deployment import Pool
from capacity.deployment.launch_command import LaunchCommand, read_line, read_servers
from capacity.deployment.launch_writers import launch_command
from capacity.hardware import load_profile
from capacity.report.deploy_files import README, deploy_files

FORMS = {
    "kserve-inferenceservice.yaml", "kserve-llminferenceservice.yaml", "production-stack-values.yaml",
    "llm-d-values.yaml", "dynamo-graph.yaml", "ray-serve.yaml", "skypilot.yaml", "compose.yaml",
}  # fmt: skip
WITHOUT_GPU = ("compose.yaml",)
PER_ROLE = {"kserve-llminferenceservice.yaml", "llm-d-values.yaml", "dynamo-graph.yaml"}


def expected_fields(pool: Pool, file: str) -> dict[str, Any]:
    """Return the fields of the pool's own launch command, with role and replicas."""
    fields = dict(read_line(launch_command(pool.engine, MODEL, pool).text).fields)
    own = {"role": pool.role} if pool.role != "both" else {}
    replicas = {"replicas": pool.replicas} if pool.replicas > 1 else {}
    default = {"enable_prefix_caching": True} if file.startswith("production-stack") else {}
    return default | {"engine": "vllm"} | fields | own | replicas


def fields_of(server: LaunchCommand) -> dict[str, Any]:
    return {"engine": "vllm"} | {
        key: value.partition("@")[0] if key == "engine" else value for key, value in server.fields.items()
    }


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_file_is_read_back_as_the_planned_pools(name: str) -> None:
    pools = DEPLOYMENTS[name]
    files = {file: text for file, text in texts(name).items() if file in FORMS}
    assert files or name == "unknown label"
    for file, text in files.items():
        servers = {str(server.fields.get("role", "both")): server for server in read_servers(text)}
        assert set(servers) == {pool.role for pool in pools}, file
        for pool in pools:
            server = servers[pool.role]
            assert (server.model, server.unknown, server.not_modelled) == (MODEL, (), ()), file
            assert fields_of(server) == expected_fields(pool, file), file
            known = file not in WITHOUT_GPU and name != "unknown label"
            assert (server.gpu is not None) == known, file
            assert server.gpu is None or load_profile(server.gpu).name == pool.gpu, file


def test_files_name_the_planned_release_by_a_pinned_image() -> None:
    for name in DEPLOYMENTS:
        for file, text in texts(name).items():
            assert "latest" not in text, file
            if file in FORMS and file not in ("ray-serve.yaml", "dynamo-graph.yaml"):
                release = read_servers(text)[0].fields["engine"]
                assert str(release).startswith(f"{DEPLOYMENTS[name][0].engine.partition('@')[0]}@"), file
    assert "has vllm 0.31.0 and sglang 0.5.21; planned: vllm 0.33.0" in texts("one")["dynamo-graph.yaml"]


@pytest.mark.parametrize(
    ("name", "files", "reasons"),
    [
        ("one", FORMS, ()),
        ("replicas", FORMS - {"compose.yaml"}, ("this format would give all replicas the same GPUs",)),
        (
            "prefill and decode",
            PER_ROLE,
            ("this format cannot describe separate prefill and decode servers",),
        ),
        ("sglang prefill and decode", {"dynamo-graph.yaml"}, ("this format does not support sglang",)),
        ("expert parallel", FORMS - {"ray-serve.yaml"}, ("this format cannot set --data-parallel-size",)),
        (
            "unknown label",
            FORMS - {"skypilot.yaml", "ray-serve.yaml"},
            ("this format has no name for a10-24gb",),
        ),
    ],
)
def test_format_that_cannot_describe_a_deployment_is_named_with_the_reason(
    name: str, files: set[str], reasons: tuple[str, ...]
) -> None:
    found = texts(name)
    assert set(found) & FORMS == files
    lines = dict(line.split(maxsplit=1) for line in found[README].splitlines())
    assert set(lines) == {*FORMS, "terraform.tfvars.json", "keda-scaledobject.yaml", "prometheus-alerts.yaml"}
    assert {file for file, line in lines.items() if not line.startswith("not written")} == set(found) - {
        README
    }
    assert all(any(reason in line for line in lines.values()) for reason in reasons)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, "one engine needs more than the 8 GPUs"),
        ({"gpu": "mi300x-192gb"}, "this format is written for NVIDIA GPUs only, not for mi300x-192gb"),
        ({"engine": "tensorrt-llm", "kv_cache_dtype": "fp8"}, "the command reads an options file"),
        ({"engine": "tgi"}, "this format does not support tgi"),
    ],
)
def test_deployment_that_no_format_can_describe_is_not_written(fields: dict[str, Any], reason: str) -> None:
    pool = Pool(**{"gpu": "h100-sxm-80gb", **fields})
    launch = launch_command(pool.engine, MODEL, pool)
    found = deploy_files("m", MODEL, [launch], [pool], slos=(), weights_gib=10.0, in_flight=1.0)
    assert not FORMS & set(found)
    lines = [line for line in found[README].splitlines() if line.split()[0] in FORMS]
    assert any(reason in line for line in lines)
    assert all("not written: " in line for line in lines)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_files_have_only_fields_of_the_published_schemas(name: str) -> None:
    extracts = json.loads(EXTRACT.read_text(encoding="utf-8"))
    for file, document in written(name).items():
        assert mistakes(extracts[file], document) == [], file


def fixed_keys(
    node: Any, fields: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the path, the mapping and the name of each key whose name the schema fixes."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        own = f"{path}/{key}".strip("/")
        if own in fields:
            yield own, node, key
        else:
            own = f"{path}/*".strip("/")
        if isinstance(value, dict | list) and fields[own] != "free":
            yield from fixed_keys(value, fields, own)


@pytest.mark.parametrize("file", SCHEMAS)
def test_misspelt_misplaced_or_missing_field_is_a_mistake(file: str) -> None:
    extract = json.loads(EXTRACT.read_text(encoding="utf-8"))[file]
    fields = extract["fields"]
    document = next(found[file] for found in map(written, DEPLOYMENTS) if file in found)
    places = list(fixed_keys(document, fields))
    assert len(places) >= 9
    for number, (path, _, key) in enumerate(places):
        misspelt, misplaced, missing = (copy.deepcopy(document) for _ in range(3))
        _, holder, _ = list(fixed_keys(misspelt, fields))[number]
        holder[f"{key}x"] = holder.pop(key)
        assert mistakes(extract, misspelt), path
        _, holder, _ = list(fixed_keys(misplaced, fields))[number]
        value = holder.pop(key)
        if key not in fields:
            misplaced[key] = value
            assert mistakes(extract, misplaced), path
        _, holder, _ = list(fixed_keys(missing, fields))[number]
        del holder[key]
        above = path.rpartition("/")[0]
        needed = key in extract["required"].get(above, ())
        assert (f"{above} lacks {key}" in mistakes(extract, missing)) == needed, path
