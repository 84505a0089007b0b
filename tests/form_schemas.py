"""Published schemas of the files that a plan writes: the fields that it uses, in `tests/data/form_schemas.json`.

`python tests/form_schemas.py FOLDER` validates the files of `DEPLOYMENTS` with the complete schemas in FOLDER (names in
`SCHEMAS`) and writes the extract: source, type of each field, and required fields. The schemas of Ray and SkyPilot are
made from the installed packages (`LLMConfig` and `ServeDeploySchema` with pydantic; `sky.utils.schemas`), with those of
`args`, `resources` and `service` in their places.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonschema import Draft202012Validator

from capacity.deployment import Pool
from capacity.deployment.launch_writers import launch_command
from capacity.report.deploy_files import deploy_files
from capacity.workload import parse_slos

EXTRACT = Path(__file__).parent / "data" / "form_schemas.json"
MODEL = "org/model"


def _pool(**fields: Any) -> Pool:
    return Pool(**({"gpu": "h100-sxm-80gb"} | fields))


DEPLOYMENTS: dict[str, tuple[Pool, ...]] = {
    "one": (_pool(),),
    "replicas": (_pool(replicas=3, gpu="l40s-48gb", enable_prefix_caching=True),),
    "tensor parallel": (
        _pool(tensor_parallel_size=4, pipeline_parallel_size=2, max_model_len=8192, gpu_memory_utilization=0.9),
    ),
    "expert parallel": (
        _pool(tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True, gpu="h200-sxm-141gb"),
    ),
    "quantized": (
        _pool(quantization="fp8", kv_cache_dtype="fp8", max_num_seqs=64, max_num_batched_tokens=4096,
              enable_prefix_caching=False, enforce_eager=True, gpu="a100-sxm-80gb"),
    ),
    "drafts": (_pool(speculator="eagle3", num_speculative_tokens=3),),
    "unknown label": (_pool(gpu="a10-24gb"),),
    "prefill and decode": (
        _pool(role="prefill", replicas=2, tensor_parallel_size=2), _pool(role="decode", replicas=3)
    ),
    "sglang": (_pool(engine="sglang", tensor_parallel_size=2, replicas=2),),
    "sglang prefill and decode": (
        _pool(engine="sglang", role="prefill", replicas=2), _pool(engine="sglang", role="decode")
    ),
    "tensorrt-llm": (_pool(engine="tensorrt-llm", tensor_parallel_size=2),),
}  # fmt: skip


class Source(NamedTuple):
    """A published schema: its file in FOLDER, version of a CRD, repository, path, commit or release, and date."""

    file: str
    version: str
    repository: str
    path: str
    commit: str
    date: str


_KSERVE = ("kserve/kserve", "aaac4e29", "2026-08-21")
SCHEMAS = {
    "kserve-inferenceservice.yaml": Source(
        "isvc.yaml", "v1beta1", _KSERVE[0],
        "config/crd/full/serving.kserve.io_inferenceservices.yaml", *_KSERVE[1:],
    ),
    "kserve-llminferenceservice.yaml": Source(
        "llmisvc.yaml", "v1alpha1", _KSERVE[0],
        "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml", *_KSERVE[1:],
    ),
    "production-stack-values.yaml": Source(
        "stack.json", "", "vllm-project/production-stack", "helm/values.schema.json", "a6c01db0", "2026-08-05"
    ),
    "llm-d-values.yaml": Source(
        "llmd.json", "", "llm-d-incubation/llm-d-modelservice",
        "charts/llm-d-modelservice/values.schema.json", "3051935e", "2026-04-22",
    ),
    "dynamo-graph.yaml": Source(
        "dynamo.yaml", "v1beta1", "ai-dynamo/dynamo (as in wxsms/dynamo)",
        "deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml", "2a6da14c", "2026-08-21",
    ),
    "ray-serve.yaml": Source(
        "ray.json", "", "ray-project/ray",
        "python/ray/llm/_internal/serve/core/configs/llm_config.py", "2.60.0", "2026-11-29",
    ),
    "skypilot.yaml": Source(
        "skypilot.json", "", "skypilot-org/skypilot", "sky/utils/schemas.py", "0.14.1", "2026-11-29"
    ),
    "compose.yaml": Source(
        "compose.json", "", "compose-spec/compose-spec", "schema/compose-spec.json", "170098ba", "2026-06-23"
    ),
    "keda-scaledobject.yaml": Source(
        "keda.yaml", "v1alpha1", "kedacore/keda",
        "config/crd/bases/keda.sh_scaledobjects.yaml", "8b4f083c", "2026-08-20",
    ),
    "prometheus-alerts.yaml": Source(
        "rules.yaml", "v1", "prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml", "6adcebc5", "2026-08-08",
    ),
}  # fmt: skip
IS = {
    "object": dict, "free": dict, "array": list, "string": str, "boolean": bool, "integer": int,
    "number": (int, float), "int-or-string": (int, str),
}  # fmt: skip


def written(name: str) -> dict[str, Any]:
    """Return the data of each file that is written for one of `DEPLOYMENTS`, by the file's name."""
    return {file: yaml.safe_load(text) for file, text in texts(name).items() if file in SCHEMAS}


def texts(name: str) -> dict[str, str]:
    pools = DEPLOYMENTS[name]
    launches = [launch_command(pool.engine, MODEL, pool) for pool in pools]
    slos = parse_slos("ttft:p95:500ms tpot:p95:40ms")
    return deploy_files("Model 1", MODEL, launches, pools, slos=slos, weights_gib=15.0, in_flight=12.5)


def mistakes(extract: dict[str, Any], document: Any) -> list[str]:
    """Return where a document has unknown fields, values of another type, or lacks required fields."""
    fields, required = extract["fields"], extract["required"]

    def walk(node: Any, path: str) -> Iterator[str]:
        kind = fields.get(path)
        if kind is None:
            yield f"{path} is not a field"
            return
        if isinstance(kind, list):
            if node not in kind:
                yield f"{path} is {node!r}, not one of {kind}"
            return
        if not isinstance(node, IS[kind]) or (isinstance(node, bool) and kind != "boolean"):
            yield f"{path} is {node!r}, not {kind}"
            return
        if kind == "free":
            return
        if isinstance(node, dict):
            yield from (f"{path} lacks {name}" for name in required.get(path, ()) if name not in node)
            for key, value in node.items():
                own = f"{path}/{key}".strip("/")
                yield from walk(value, own if own in fields else f"{path}/*".strip("/"))
        elif isinstance(node, list):
            for value in node:
                yield from walk(value, f"{path}/*".strip("/"))

    return list(walk(document, ""))


def complete_schema(source: Source, folder: Path) -> Any:
    """Return a published schema as JSON Schema; fields that a CRD does not list are errors, as an API server drops
    them."""
    text = (folder / source.file).read_text(encoding="utf-8")
    if not source.version:
        schema = json.loads(text)
        if source.file == "llmd.json":  # it leaves `containers` open: keys that templates/_helpers.tpl reads
            known = schema["properties"]["decode"]["properties"]["initContainers"]["items"]["properties"]
            commands = {"enum": ["vllmServe", "imageDefault", "custom"]}
            own = {"modelCommand": commands, "mountModelVolume": {"type": "boolean"}}
            for role in ("decode", "prefill"):
                schema["properties"][role]["properties"]["containers"]["items"] = {
                    "type": "object",
                    "required": ["image"],
                    "properties": known | own,
                    "additionalProperties": False,
                }
        return schema
    definition = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    version = next(each for each in definition["spec"]["versions"] if each["name"] == source.version)
    schema = version["schema"]["openAPIV3Schema"]
    if source.file == "rules.yaml":  # a rule file is the spec of a PrometheusRule
        schema = schema["properties"]["spec"]
    else:
        schema["properties"]["metadata"] = {"type": "object"}
    _close(schema)
    return schema


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        if node.get("x-kubernetes-int-or-string"):
            node.pop("type", None)
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _close(each)


def _used_fields(root: Any, schema: Any, node: Any, path: str, extract: dict[str, Any]) -> None:
    """Add the type of each field of a document, and the required fields of its objects, from a complete schema."""
    while "$ref" in schema:
        target = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        schema = target
    if schema.get("x-kubernetes-int-or-string"):
        extract["fields"][path] = "int-or-string"
        return
    for choice in (schema.get(word) for word in ("anyOf", "oneOf") if schema.get(word)):
        simple = {each.get("type") for each in choice}
        if "string" in simple and simple & {"number", "integer"}:
            extract["fields"][path] = "int-or-string"
            return
        if "properties" not in schema:
            fitting = [each for each in choice if Draft202012Validator({**each, "$defs": root.get("$defs", {}),
                       "definitions": root.get("definitions", {})}).is_valid(node)]  # fmt: skip
            _used_fields(root, fitting[0], node, path, extract)
            return
    kinds = schema.get("type", "object" if "properties" in schema else None)
    kinds = kinds if isinstance(kinds, list) else [kinds]
    kind = next((each for each in kinds if each in IS and isinstance(node, IS[each])), None)
    if kind is None:  # the schema leaves the type open
        kind = "free" if isinstance(node, dict) else next(name for name in IS if isinstance(node, IS[name]))
    extract["fields"][path] = schema.get("enum", kind)
    if kind == "array" and node:
        for value in node:
            _used_fields(root, schema.get("items", {}), value, f"{path}/*".strip("/"), extract)
    if kind != "object":
        return
    more = schema.get("additionalProperties")
    if "properties" not in schema and "patternProperties" not in schema and not isinstance(more, dict):
        extract["fields"][path] = "free"
        return
    if schema.get("required"):
        extract["required"][path] = sorted(schema["required"])
    for key, value in node.items():
        known = schema.get("properties", {}).get(key)
        if known is not None:
            _used_fields(root, known, value, f"{path}/{key}".strip("/"), extract)
        else:
            inner = next(iter(schema.get("patternProperties", {}).values()), more)
            _used_fields(
                root, inner if isinstance(inner, dict) else {}, value, f"{path}/*".strip("/"), extract
            )


def main(folder: Path) -> None:
    """Validate the files with the complete schemas and write the extract."""
    extracts: dict[str, Any] = {}
    for file, source in SCHEMAS.items():
        schema = complete_schema(source, folder)
        validator = Draft202012Validator(schema)
        origin = f"{source.repository}, {source.path}, {source.commit}, {source.date}"
        extract: dict[str, Any] = {"source": origin, "fields": {}, "required": {}}
        checked = 0
        for name in DEPLOYMENTS:
            document = written(name).get(file)
            if document is None:
                continue
            checked += 1
            for error in validator.iter_errors(document):
                print(f"{file}, {name}: {list(error.absolute_path)}: {error.message[:200]}")
            _used_fields(schema, schema, document, "", extract)
        print(f"{file}: {checked} files, {len(extract['fields'])} fields")
        extracts[file] = {**extract, "fields": dict(sorted(extract["fields"].items()))}
    EXTRACT.write_text(json.dumps(extracts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
