"""Launch lines in Kubernetes manifests and compose files: read as the line itself, with its replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import find_engine
from capacity.deployment.launch_command import read_launch
from capacity.deployment.launch_writers import launch_command
from capacity.deployment.manifest import read_containers
from capacity.report.kubernetes import kubernetes_manifest

POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: m}}
spec:
  replicas: {replicas}
  template:
    spec:
      initContainers:
      - {{name: wait, image: busybox, command: [sh, -c, "until nslookup db; do sleep 2; done"]}}
      containers:
      - name: server
        image: {image}
        {started}
        env:
        - {{name: MODEL, value: org/m}}
        - {{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{name: hf, key: token}}}}}}
"""


def pod(started: str, image: str = "vllm/vllm-openai:v0.10.2", replicas: int = 1) -> str:
    return POD.format(started=started, image=image, replicas=replicas)


@pytest.mark.parametrize(
    ("text", "engine", "fields"),
    [
        (pod('args: ["--model", "org/m", "--max-model-len=8192"]'), "vllm@0.10.2", {"max_model_len": "8192"}),
        (pod("args: [--model, $(MODEL), -tp, 2]", replicas=3), "vllm@0.10.2", {"replicas": 3}),
        (pod('command: [vllm, serve, org/m]\n        args: ["-tp", "4"]'), "vllm@0.10.2", {}),
        (
            pod(
                'command: ["/bin/sh", "-c"]\n'
                '        args: ["pip install x && exec vllm serve ${MODEL} --max-num-seqs 8; sleep inf"]'
            ),
            "vllm@0.10.2",
            {"max_num_seqs": "8"},
        ),
        (
            pod("command:\n        - bash\n        - -c\n        - |\n          set -e\n"
                "          vllm serve org/m \\\n            --max-num-seqs 8\n          echo done"),
            "vllm@0.10.2",
            {"max_num_seqs": "8"},
        ),
        (
            pod("command: [python3, -m, sglang.launch_server, --model-path, org/m]", "lmsysorg/sglang:v0.5.5-cu129"),
            "sglang@0.5.5",
            {},
        ),
        (pod("args: [--model-id, org/m]", "ghcr.io/huggingface/text-generation-inference:3.1"), "tgi@3.1", {}),
        (
            pod("command: [llama-server, --alias, org/m]", "ghcr.io/ggml-org/llama.cpp:server-cuda-b7000"),
            "llama.cpp@b7000",
            {},
        ),
        (
            pod("command: [trtllm-serve, org/m]", "nvcr.io/nvidia/tensorrt-llm/release:1.0.0"),
            "tensorrt-llm@1.0",
            {},
        ),
        (
            "services:\n  llm:\n    image: vllm/vllm-openai:latest\n    command: --model org/m --max-num-seqs 4\n"
            "    deploy: {replicas: 2}\n    environment: [A=b]\n",
            None,
            {"max_num_seqs": "4", "replicas": 2},
        ),
    ],
)  # fmt: skip
def test_a_manifest_is_the_line_that_it_starts(
    text: str, engine: str | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
    for given in (text, str(tmp_path / "m.yaml")):
        read = read_launch(given)
        assert (read.model, read.fields.get("engine"), read.unknown) == ("org/m", engine, ())
        assert {name: read.fields[name] for name in fields} == fields
        assert ("replicas" in read.fields) == ("replicas" in fields)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "llama.cpp"])
def test_the_manifest_that_a_plan_writes_reads_back(engine: str) -> None:
    quantization = {"quantization": "gguf-q8_0"} if engine == "llama.cpp" else {}
    pool = Pool(gpu="h100", engine=engine, tensor_parallel_size=2, max_model_len=4096, **quantization)
    launch = launch_command(engine, "org/m", pool)
    line, manifest = read_launch(launch.text), read_launch(kubernetes_manifest("m", launch, pool, 2))
    assert dict(manifest.fields) == {**line.fields, "engine": manifest.fields["engine"], "replicas": 2}
    assert (
        find_engine(manifest.fields["engine"]).label == find_engine(engine).label
    )  # its image names the release
    assert manifest.model == line.model


def test_servers_that_differ_are_not_one() -> None:
    two = pod("args: [--model, org/m]") + "---" + pod("args: [--model, org/other]")
    with pytest.raises(InvalidInput, match="contains 2 different servers: paste one of them"):
        read_launch(two)
    assert read_launch(pod("args: [--model, org/m]") + "---" + pod("args: [--model, org/m]")).model == "org/m"


def test_what_starts_no_server_is_refused() -> None:
    for text in (pod("args: [--port, 80]", "nginx:1"), pod("tty: true"), "- --model\n- org/m\n"):
        with pytest.raises(InvalidInput, match="must contain a command that launches a server"):
            read_launch(text)
    with pytest.raises(InvalidInput, match="does not contain a model"):
        read_launch(pod("args: [--max-num-seqs, '4']"))


SKYPILOT = """
service:
  readiness_probe: /v1/models
  {replicas}
resources:
  accelerators: {accelerators}
envs: {{MODEL: org/m}}
setup: pip install vllm
run: |
  conda activate vllm
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE
"""


@pytest.mark.parametrize(
    ("replicas", "accelerators", "gpu", "ranks", "notes"),
    [
        ("replicas: 2", "H100:2", "h100", "2", 0),
        ("replica_policy: {min_replicas: 2, max_replicas: 2}", "{L40S: 1}", "l40s", "1", 0),
        ("replica_policy: {min_replicas: 2, max_replicas: 9}", "A100", "a100-sxm-40gb", "1", 1),
        ("replicas: 2", "[H100:4, H200:4]", None, "4", 1),
    ],
)
def test_skypilot_task_gives_replicas_and_accelerators(
    replicas: str, accelerators: str, gpu: str | None, ranks: str, notes: int
) -> None:
    read = read_launch(SKYPILOT.format(replicas=replicas, accelerators=accelerators))
    assert (read.model, read.gpu, len(read.not_modelled)) == ("org/m", gpu, notes)
    assert dict(read.fields) == {"tensor_parallel_size": ranks, "replicas": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image:\n  repository: vllm/vllm-openai\n  command: [vllm, serve, /data]\n", "is YAML with image, which"),
        ("kind: Pipeline\nspec: {image: vllm/vllm-openai}\n", "is Pipeline, which cannot be read: paste"),
        ("kind: DynamoGraphDeployment\nspec: {image: vllm/vllm-openai}\n", "no container of the file has one"),
        ("image: {{ .Values.image }}\nargs:\n- vllm/vllm-openai --model org/m\n", "not YAML .*: correct it, or paste"),
        ("- image: vllm/vllm-openai\n  tag: latest\n", "is a YAML list, which cannot be read: paste"),
        ("a: {b: [1]}\n", "is YAML with a, which cannot be read"),
    ],
)  # fmt: skip
def test_mapping_of_yaml_is_refused_by_its_kind_not_read_as_a_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_launch(text)


def test_a_line_is_no_manifest() -> None:
    for text in ("vllm serve org/m --x 1", "docker run -e A=b vllm/vllm-openai --model m", "", "key: value"):
        assert read_containers(text) == ()


def test_aliases_and_merge_keys_that_explode_are_rejected() -> None:
    """A file of a few lines that names itself, or a billion of its parts, is rejected as quickly as another."""
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    for text, words in (
        ("\n".join(lines), "more than 50,000 YAML nodes"),
        ("a: &a\n  b: *a\n", r"the alias \*a is inside its own value"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n", "merge keys .* are not read"),
        ("a: " + "[" * 200 + "]" * 200 + "\n", "100 levels"),
    ):
        with pytest.raises(InvalidInput, match=words):
            read_containers(text)
