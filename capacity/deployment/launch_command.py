"""A pasted line that launches a server, of whichever engine its first words name, as a model and a pool."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

from capacity.base.checked import checked
from capacity.base.errors import InvalidInput
from capacity.deployment.file import DeploymentFile
from capacity.deployment.launch_readers import SGLANG, TENSORRT_LLM
from capacity.deployment.launch_readers_local import LLAMA_CPP, OLLAMA, TGI
from capacity.deployment.launched import OPTION, LaunchCommand, NoServer, Reader, until_operator, words_of
from capacity.deployment.manifest import Container, containers_of, only_one, refuse_manifest
from capacity.deployment.vllm_command import read_vllm_command

PROGRAMS = {  # by the end of a word
    "sglang.launch_server": SGLANG,
    "trtllm-serve": TENSORRT_LLM,
    "trtllm-build": TENSORRT_LLM,
    "text-generation-launcher": TGI,
    "llama-server": LLAMA_CPP,
    "llama-server.exe": LLAMA_CPP,
}
IMAGES = {  # by the end of a container's path; the entry point is the server
    "/text-generation-inference": TGI,
    "/sglang": SGLANG,
    "/llama.cpp": LLAMA_CPP,
    "/tensorrt-llm/release": TENSORRT_LLM,
}
EXAMPLES = (
    "vllm serve, python -m sglang.launch_server, trtllm-serve, text-generation-launcher, llama-server, "
    "ollama run"
)
_SETTING = re.compile(r"([A-Z][A-Z0-9_]+)=(.*)", re.DOTALL)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)|server-(?:\w+-)?(b\d+)")  # llama.cpp counts its builds
_PLANNED = re.compile(
    r"^\s*#\s*planned for (\S+) ([\w.]+)", re.MULTILINE
)  # as a plan writes above the command


@checked
def from_launch(command: str, *, gpu: str | None = None) -> DeploymentFile:
    """The deployment of a pasted launch line, or of a launch file by its path, on `gpu` (default: the GPU that the file
    names): every question takes it in place of a model.

    vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp and Ollama, by the first words. Warns of flags that would change an
    answer and are not modelled. Raises InvalidInput for a line of none of them, one without a model, and a flag that is
    none of the engine's.
    """
    read = read_launch(command)
    if read.unknown:
        raise InvalidInput(f"no flags of this engine: {', '.join(read.unknown)}")
    if not read.model:
        raise InvalidInput(f"{OPTION} names no model: paste the whole line")
    if read.not_modelled:
        warnings.warn(f"not modelled: {', '.join(read.not_modelled)}", stacklevel=2)
    if (gpu := gpu or read.gpu) is None:
        raise InvalidInput(f"{OPTION} names no GPU: give gpu")
    return DeploymentFile(schema="capacity/deployment/v1", model=read.model, pools=(read.pool(gpu),))


from_vllm = from_launch  # by its older name


def read_launch(text: str) -> LaunchCommand:
    """A launch line, or the file that it stands in, as a model (empty: not named) and fields of a pool.

    Of a Kubernetes manifest, a compose file or a SkyPilot task, the one server that it starts, with its replicas.
    Continued lines, comments, environment settings before the program, containers and both spellings of flags are
    understood. Raises InvalidInput, also for any other mapping of YAML.
    """
    folder = None
    if _is_file(text.strip()):
        path = Path(text.strip())
        folder, text = path.parent, _contents(path)
    if servers := _servers(text, folder):
        server = only_one(servers)
        command = _at_planned_release(_read_line(server.line, folder), text)
        manifest = {"replicas": server.replicas} if server.replicas != 1 else {}
        return replace(
            command,
            gpu=server.gpu,
            fields={**command.fields, **manifest},
            not_modelled=(*command.not_modelled, *server.not_modelled),
        )
    refuse_manifest(text)
    return _at_planned_release(_read_line(text, folder), text)


def _at_planned_release(command: LaunchCommand, text: str) -> LaunchCommand:
    """The command with the release that a plan's comment names, where the line itself names none."""
    planned = _PLANNED.search(text)
    if planned is None or command.fields.get("engine", "vllm") != planned[1]:
        return command
    engine = f"{planned[1]}@{planned[2].removesuffix('.0')}"
    return replace(command, fields={**command.fields, "engine": engine})


def _servers(text: str, folder: Path | None) -> list[Container]:
    """The containers of a manifest that launch a server, beside proxies and downloads."""
    return [container for container in containers_of(text) if _is_server(container.line, folder)]


def _is_server(line: str, folder: Path | None) -> bool:
    """Whether it launches one, even if it can't be read further."""
    try:
        _read_line(line, folder)
    except NoServer:
        return False
    except InvalidInput:
        pass
    return True


def _read_line(text: str, folder: Path | None) -> LaunchCommand:
    """A line as it stands."""
    words = words_of(text)
    environment = {found[1]: found[2] for word in words if (found := _SETTING.fullmatch(word))}
    image: tuple[Reader, int] | None = None
    for place, word in enumerate(words):
        path, _, tag = word.partition(":")
        if ends := [reader for end, reader in IMAGES.items() if path.endswith(end)]:
            image = image or (_released(ends[0], tag), place)
        program = word.rpartition("/")[2]
        reader, arguments = PROGRAMS.get(program), words[place + 1 :]
        if program == "sglang" and arguments[:1] == ["serve"]:
            reader, arguments = SGLANG, arguments[1:]
        if reader is not None:
            if image is not None and image[0].engine.startswith(reader.engine):
                reader = image[0]
            return reader.read(until_operator(arguments), environment, folder)
    if told := _ollama(words):
        return OLLAMA.read(told, environment, folder)
    if image is not None:
        return image[0].read(until_operator(words[image[1] + 1 :]), environment, folder)
    try:
        return read_vllm_command(text, folder=folder)
    except NoServer:
        raise NoServer(f"{OPTION} must hold a line that launches a server: {EXAMPLES}") from None


def _is_file(text: str) -> bool:
    try:
        return bool(text) and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a character that no name has
        return False


def _contents(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"{OPTION}: {path} cannot be read as text") from None


def _ollama(words: list[str]) -> list[str]:
    """The words after `ollama` that name a model, else after the first `ollama`; empty without any."""
    places = [place for place, word in enumerate(words) if word.rpartition("/")[2] == "ollama"]
    for verb in ("run", "create", "serve", "pull"):
        for place in places:
            if words[place + 1 : place + 2] == [verb]:
                rest = words[place + 1 :]
                ends = [i for i, word in enumerate(rest) if word in ("&", "&&", ";", "wait")]
                return rest[: ends[0]] if ends else rest
    return []


def _released(reader: Reader, tag: str) -> Reader:
    """The reader of the release that an image's tag names; of the newest, where it names none."""
    version = _VERSION.match(tag)
    return (
        reader
        if version is None
        else replace(reader, engine=f"{reader.engine}@{(version[1] or version[2]).removesuffix('.0')}")
    )
