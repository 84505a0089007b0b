"""Files of pages that read a file: uploads, files dropped on the Start page, or an example."""

import tempfile
from pathlib import Path
from typing import Any

import capacity_validate
import streamlit as st

import capacity
from capacity.base.errors import InvalidInput
from capacity.service.jobs import Task
from capacity.workload import LognormalLengths, SteadyArrivals, conversations, write_timed_trace
from capacity.workload.synthetic import ThinkTime
from capacity_app import parts, uploads
from capacity_app.dropped_files import dropped_paths
from capacity_app.error_display import show_errors

MEASUREMENTS = Path("measurements", "2026-11-21-cpu-quick.jsonl")
EXAMPLES = {  # what an example contains, by the function that makes it
    "example_trace": "generated conversations with a shared system prompt",
    "example_sweep": "predictions for four GPUs at five batch sizes",
    "example_measurements": "published measurements of a CPU (2026-11-21)",
    "example_server": "a simulated (not measured) H100 server, slower than its profile",
}
TRACE, SWEEP, MEASURED, SERVER = EXAMPLES
SWEEP_SPEC = Path(__file__).with_name("example_sweep.toml")
SERVER_FILES = Path(__file__).with_name("example_server_files")  # made by benchmarks/example_server.py


def example_trace() -> dict[str, bytes]:
    """Return an example trace as contents by file name: 600 conversations with a shared system prompt."""
    workload = conversations(
        num_sessions=600,
        arrivals=SteadyArrivals(1.0),
        turns=LognormalLengths(4, 0.5),
        user_tokens=LognormalLengths(600, 0.8),
        output=LognormalLengths(200, 0.6),
        think_time=ThinkTime(60.0),
        system_prompt_tokens=512,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "conversations.jsonl")
        write_timed_trace(workload, path)
        return {path.name: path.read_bytes()}


def example_sweep() -> dict[str, bytes]:
    """Return the export of a sweep over batch size and GPU, as contents by file name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example_sweep.csv")
        capacity.sweep(SWEEP_SPEC, path.with_suffix(".sqlite"), export_to=path)
        return {path.name: path.read_bytes()}


def example_measurements() -> dict[str, bytes]:
    """Return the measurements of a CPU that are published with this project, as contents by file name."""
    package = Path(capacity_validate.__file__).parent
    inside = package / MEASUREMENTS
    path = inside if inside.is_file() else package.parent / MEASUREMENTS
    return {path.name: path.read_bytes()}


def example_server() -> dict[str, bytes]:
    """Return the files of a simulated server, as contents by file name."""
    return {path.name: path.read_bytes() for path in sorted(SERVER_FILES.iterdir())}


def read_files(
    label: str, key: str, example: str, *, dropped: str = "", several: bool = False, **options: Any
) -> tuple[str, ...]:
    """Draw an uploader, and return the paths of the uploaded files, which are stored.

    Without an upload, returns the files of the kind `dropped` from the Start page, or else an example from `EXAMPLES`.
    The example is made in the background; raises NotReady until then.
    """
    uploaded: Any = st.file_uploader(label, key=key, accept_multiple_files=several, **options)
    files = uploaded if several else [uploaded] if uploaded else []
    with show_errors():
        if len(files) > uploads.MAX_FILES:
            raise InvalidInput(f"{len(files)} files, at most {uploads.MAX_FILES}; the others are not read")
    if files:
        paths = [str(uploads.store_upload(file)) for file in files[: uploads.MAX_FILES]]
        return tuple(dict.fromkeys(paths))
    if paths := [path for path in dropped_paths(dropped) if Path(path).exists()]:
        return tuple(paths)
    task = Task(function=f"capacity_app.example_files:{example}", profiles=())
    made = parts.run_in_background(example, task, doing="Making an example").ready_value
    text = f"Example: {EXAMPLES[example]}. Upload your own files to replace it."
    st.info(text, icon=":material/lightbulb:")
    return tuple(str(uploads.store_file(*each)) for each in made.items())
