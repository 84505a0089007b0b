"""Write a planned deployment in the file formats of deployment tools, such as KServe, SkyPilot and compose.

`deployment/manifest.py` reads these formats. `server_form_files.toml` contains the constant parts of each file, and
`deployment/server_forms.toml` the paths at which image, command, flags, replicas, GPU and model are set.
"""

import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from capacity.base.spec import Spec
from capacity.deployment import Pool
from capacity.deployment.command_words import Launch, is_flag
from capacity.deployment.flag_table import flag_table
from capacity.deployment.launch_writers import engine_name
from capacity.deployment.server_forms import ServerForm, gpu_product, server_forms, split_path
from capacity.report.kubernetes import GPUS_PER_NODE, Fields, dump_yaml, engine_container, fill

TABLE = Path(__file__).with_suffix(".toml")


class FormFile(Spec):
    """How to write a deployment in the file format `form` (a `ServerForm`).

    `use`: command that applies the file. `servers`: path of the server of each role. `container`: path of the container
    in a server. `from_pod`: keys of `engine_container` to copy. `whole`: the file contains the whole launch command,
    else only its flags. `program` replaces the first words of the command. `role_flag`: flag that sets the role.
    `in_command`: flags that stay in the command although the format has a path for them. `lacks`: flags that the format
    cannot express. `model`: values at the format's model paths. `accelerators`: the format's name of each GPU.
    `document` and `server`: constant parts as YAML, with placeholders.
    """

    form: str
    file: str
    use: str
    engines: tuple[str, ...]
    servers: dict[str, str]
    container: str = ""
    from_pod: tuple[str, ...] = ()
    image: str = "$image"
    whole: bool = False
    program: str = ""
    role_flag: str = ""
    in_command: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    one_replica: bool = False
    model: tuple[str, ...] = ()
    accelerators: dict[str, str] | None = None
    document: str = "{}"
    server: str = "{}"


def write_form_files(
    launches: Sequence[Launch], pools: Sequence[Pool], values: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two dicts by file name: its text, and a line on how to apply the file or why it is not written.

    `launches` and `pools`: one for each role (prefill, decode, or both). `values`: value of each placeholder.
    """
    texts, lines = dict[str, str](), dict[str, str]()
    forms = {form.name: form for form in server_forms()}
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["files"]:
        file = FormFile.model_validate(row)
        reason = _obstacle(file, launches, pools)
        lines[file.file] = str(fill(file.use, values)) if reason is None else f"not written: {reason}"
        if reason is not None:
            continue
        document = fill(yaml.safe_load(file.document), values)
        notes = [lines[file.file], *(note for launch in launches for note in launch.notes)]
        for launch, pool in zip(launches, pools, strict=True):
            role = "worker" if pool.role == "both" else pool.role
            _add_server(document, file, forms[file.form], launch, pool, {**values, "role": role})
        texts[file.file] = "".join(f"# {note}\n" for note in dict.fromkeys(notes)) + dump_yaml(document)
    return texts, lines


def _obstacle(file: FormFile, launches: Sequence[Launch], pools: Sequence[Pool]) -> str | None:
    """Return why a file cannot describe a deployment; None if it can."""
    engine, gpu = engine_name(pools[0].engine), pools[0].gpu
    lacking = [flag for flag in file.lacks if any(flag in launch.words for launch in launches)]
    checks = (
        (engine not in file.engines, f"this format does not support {engine}"),
        (
            any(pool.role not in file.servers for pool in pools),
            "this format cannot describe separate prefill and decode servers",
        ),
        (pools[0].on_amd, f"this format is written for NVIDIA GPUs only, not for {gpu}"),
        (file.one_replica and pools[0].replicas > 1, "this format would give all replicas the same GPUs"),
        (
            any(pool.num_gpus > GPUS_PER_NODE for pool in pools),
            f"one engine needs more than the {GPUS_PER_NODE} GPUs of a node",
        ),
        (any(launch.files for launch in launches), "the command reads an options file: use kubernetes.yaml"),
        (bool(lacking), f"this format cannot set {', '.join(lacking)}"),
        (gpu not in (file.accelerators or {gpu: ""}), f"this format has no name for {gpu}"),
    )
    return next((reason for fails, reason in checks if fails), None)


def _add_server(
    document: Fields, file: FormFile, form: ServerForm, launch: Launch, pool: Pool, values: Mapping[str, Any]
) -> None:
    """Add one server to the document: the constant parts of the format, then the planned values at their paths."""
    server = _descend(document, split_path(file.servers[pool.role]))
    server |= fill(yaml.safe_load(file.server), values)
    container = _descend(server, split_path(file.container))
    container |= {key: value for key, value in engine_container(pool).items() if key in file.from_pod}
    for path in form.replicas[:1] or form.replica_range:
        _set(server, path, pool.replicas)
    for path, text in zip(form.model, file.model, strict=False):
        _set(document if path.startswith("/") else server, path, fill(text, values))
    image = fill(file.image, values)
    for path, part in zip(form.image, [image] if len(form.image) == 1 else image.rsplit(":", 1), strict=True):
        if form.options is None:
            _set(container, path, part)
    if "resources" not in file.from_pod and form.gpu_count:
        _set(server, form.gpu_count[0].replace("*", "0"), pool.num_gpus)
    if form.accelerators is not None and file.accelerators is not None:
        count = f":{pool.num_gpus}" if form.script else ""
        _set(server, form.accelerators, file.accelerators[pool.gpu] + count)
    product = gpu_product(pool.gpu)
    for path in form.gpu_labels[-1:]:
        if product is not None:
            _set(server, path.replace("*", "0"), product)
        elif "*" in path:  # a selector that the constant part begins
            del server[split_path(path)[0]]
    _set_command(server, container, file, form, launch, pool, values)


def _set_command(
    server: Any,
    container: Any,
    file: FormFile,
    form: ServerForm,
    launch: Launch,
    pool: Pool,
    values: Mapping[str, Any],
) -> None:
    """Set the command, or its flags as the format requires: one key each, an options mapping, a variable, arguments."""
    if form.script:
        _set(container, form.command[0], f"{launch.text}\n")
        return
    table = flag_table(engine_name(pool.engine))
    start = len(table.program)
    program, model = launch.words[:start], launch.words[start : start + table.positional_model]
    flags = _flag_values(launch.words[start + len(model) :])
    if not file.whole or file.program:
        del flags["--port"]
    if file.role_flag and pool.role != "both":
        flags[file.role_flag] = pool.role
    for path, flag in form.vllm_flags.items():
        own = None if flag in file.in_command else flags.pop(flag, None)
        if own is None and path in form.absent:  # a missing key is not the engine's default
            own = not form.absent[path]
        if own is not None:
            _set(server, path, own)
    if form.options is not None:
        options = _descend(server, split_path(form.options))
        for flag, value in flags.items():
            _set(options, flag.strip("-").replace("-", "_").replace(".", "/"), value)
        return
    words = [word for flag, value in flags.items() for word in _flag_words(flag, value)]
    if file.whole:
        program = tuple(str(fill(file.program, values)).split()) or program
        _set(container, form.command[0], list(program))
        words = [*(["--model"] if file.program and model else []), *model, *words]
    if form.more_arguments is not None:
        container["env"] = [*container["env"], {"name": form.more_arguments, "value": shlex.join(words)}]
    else:
        _set(container, form.command[-1], words)


def _flag_values(words: Sequence[str]) -> Fields:
    """Return a dict from flag to value: parsed if it is JSON, else text; True for a switch, False for `--no-x`."""
    flags: Fields = {}
    for word in words:
        if is_flag(word):
            name = word.replace("--no-", "--", 1)
            flags[name] = name == word
            continue
        try:
            value = json.loads(word)
        except ValueError:
            value = word
        flags[name] = value if json.dumps(value) == word else word
    return flags


def _flag_words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, value if isinstance(value, str) else json.dumps(value)]


def _set(node: Any, path: str, value: Any) -> None:
    """Set the value at a path in a document; a number in the path is a list index."""
    *above, last = split_path(path)
    holder = _descend(node, above, last)
    holder[int(last) if isinstance(holder, list) else last] = value


def _descend(node: Any, names: Sequence[str], last: str = "") -> Any:
    """Return the node at the path `names`; create missing nodes, as lists if the next name (or `last`) is a number."""
    for name, following in pairwise((*names, last)):
        if isinstance(node, list) and int(name) == len(node):
            node.append({})
        key: Any = int(name) if isinstance(node, list) else name
        if isinstance(node, dict):
            node.setdefault(key, [] if following.isdecimal() else {})
        node = node[key]
    return node
