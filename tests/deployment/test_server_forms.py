"""Files in which other tools keep servers (`server_files`): read as the servers they start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from long_forms import mostly_ci
from server_files import DYNAMO, DYNAMO_VLLM, FILES, LLM_SERVICE

import capacity
from capacity.base.errors import CapacityError, InvalidInput
from capacity.deployment.launch_command import read_servers
from capacity.deployment.server_forms import gpu_name, gpu_product, server_forms
from capacity.hardware import load_profile

DEFAULTS = {"tensor_parallel_size": (1, "1"), "data_parallel_size": (1,)}


@pytest.mark.parametrize("name", FILES)
def test_public_structure_is_read_as_its_servers(name: str) -> None:
    text, expected, gpu, words = FILES[name]
    servers = read_servers(text)
    assert [server.model for server in servers] == ["org/m"] * len(expected)
    for server, fields in zip(servers, expected, strict=True):
        read = {
            key: "..." if key == "kv_transfer_config" else value
            for key, value in server.fields.items()
            if value is not None and value not in DEFAULTS.get(key, ())
        }
        assert read == fields
        assert server.unknown == ()
        assert server.gpu == gpu
        assert server.pool("h100")
    notes = " ".join(servers[0].not_modelled)
    assert words in notes
    assert words or not notes, notes


def test_prefill_and_decode_become_two_pools() -> None:
    found = capacity.from_launch(DYNAMO, gpu="h100")
    assert [(pool.role, pool.replicas) for pool in found.pools] == [("decode", 1), ("prefill", 3)]


def test_gpus_that_differ_from_the_command_are_noted() -> None:
    (read,) = read_servers(DYNAMO_VLLM.replace('gpu: "2"', 'gpu: "4"'))
    assert read.not_modelled == ("4 GPUs of each replica (the command uses 2)",)


def test_unread_key_is_named_without_its_value() -> None:
    (read,) = read_servers(LLM_SERVICE.replace("  replicas: 3", "  replicas: 3\n  password: {a: hunter2}"))
    assert read.not_modelled == ("password of spec (not read)",)


def test_autoscaler_and_unknown_kind_next_to_a_server_are_noted() -> None:
    scaler = (
        "---\nkind: ScaledObject\nspec: {maxReplicaCount: 9}\n---\nkind: ResourceClaimTemplate\nspec: {}\n"
    )
    (read,) = read_servers(LLM_SERVICE + scaler)
    assert read.not_modelled == (
        "ScaledObject (autoscaling is not simulated; the number of replicas in the file is used)",
        "ResourceClaimTemplate (not read)",
    )


@pytest.mark.parametrize(
    "name", mostly_ci(FILES, ["production stack, minimal", "Dynamo v1beta1", "RayService"])
)
def test_damaged_file_never_gives_a_key_as_the_model(name: str) -> None:
    """Each line is removed, cut, or read without its indentation: a refusal, or one of the names in the file."""
    lines = FILES[name][0].splitlines()
    known = {"org/m", "chat", "/mnt/models", "$MODEL_NAME"}
    for place, line in enumerate(lines):
        for changed in ([], [line[: len(line) // 2]], [line.strip()], [f"  {line}"]):
            text = "\n".join([*lines[:place], *changed, *lines[place + 1 :]]) + "\n"
            try:
                found = {server.model for server in read_servers(text)}
            except CapacityError:
                continue
            assert all(model in known or "org/m".startswith(model) for model in found), (text, found)


@pytest.mark.parametrize("model", ["tag:", "{{ .Values.model }}", "[a]", "--x", "'{a'"])
def test_word_that_is_not_a_name_is_rejected_as_model(model: str) -> None:
    with pytest.raises(InvalidInput):
        read_servers(f"docker run vllm/vllm-openai --model {model}")


def test_every_form_is_read_by_a_file_of_this_page() -> None:
    assert {form.name for form in server_forms()} - {"Kubernetes", "compose"} <= {
        form.name
        for text, *_ in FILES.values()
        for form in server_forms()
        if any(f"kind: {kind}" in text for kind in form.kinds) or any(f"{key}:" in text for key in form.keys)
    }


def test_gpu_names_are_those_of_profiles() -> None:
    for name in ("a100-80g", "A100", "NVIDIA-H200", "NVIDIA-B200", "L40S", "NVIDIA-L4"):
        assert load_profile(gpu_name(name)).name
    assert gpu_name(str(gpu_product("h200-sxm-141gb"))) == "h200-sxm-141gb"


def test_file_named_by_a_launch_file_is_read_only_below_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    (tmp_path / "o.yaml").write_text("max-num-seqs: 3\npassword: hunter2\n", encoding="utf-8")
    (folder / "link.yaml").symlink_to(tmp_path / "o.yaml")
    for name in ("../o.yaml", str(tmp_path / "o.yaml"), "link.yaml"):
        (folder / "run.sh").write_text(f"vllm serve org/m --config {name}\n", encoding="utf-8")
        with pytest.raises(InvalidInput, match="not below the folder of the launch file"):
            read_servers(str(folder / "run.sh"))
    (read,) = read_servers(f"vllm serve org/m --config {tmp_path / 'o.yaml'}")  # the user typed it
    assert (read.fields, read.unknown) == ({"max_num_seqs": "3"}, ("--password",))
    assert "hunter2" not in json.dumps([read.unknown, read.not_modelled, read.ignored])
