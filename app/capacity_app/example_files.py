"""Example files of pages that read a file: a trace of conversations, and the points of a sweep."""

import tempfile
from pathlib import Path

import capacity_validate
import streamlit as st

import capacity
from capacity.service.jobs import Task
from capacity.workload import LognormalLengths, SteadyArrivals, conversations, write_timed_trace
from capacity.workload.synthetic import ThinkTime
from capacity_app import parts, uploads

MEASUREMENTS = Path("measurements", "2026-11-21-cpu-quick.jsonl")
DESCRIPTIONS = {
    "example_trace": "generated conversations with a shared system prompt",
    "example_sweep": "predictions for four GPUs at five batch sizes",
    "example_measurements": "published measurements of a CPU (2026-11-21)",
}
SWEEP = Path(__file__).with_name("example_sweep.toml")


def example_trace() -> tuple[str, bytes]:
    """Return the name and the content of a trace of conversations with a shared system prompt, 600 sessions long."""
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
        return path.name, path.read_bytes()


def example_sweep() -> tuple[str, bytes]:
    """Return the name and the content of the export of a sweep over batch size and GPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example_sweep.csv")
        capacity.sweep(SWEEP, path.with_suffix(".sqlite"), export_to=path)
        return path.name, path.read_bytes()


def example_measurements() -> tuple[str, bytes]:
    """Return the name and the content of the measurements of a CPU, which are published with this project."""
    package = Path(capacity_validate.__file__).parent
    inside = package / MEASUREMENTS
    path = inside if inside.is_file() else package.parent / MEASUREMENTS
    return path.name, path.read_bytes()


def draw_example(function: str) -> tuple[str, ...]:
    """Make an example in the background, and return the path of its file; empty until it is made."""
    task = Task(function=f"capacity_app.example_files:{function}", profiles=())
    made = parts.run_in_background(function, task, doing="Making an example").value
    if made is None:
        return ()
    text = f"Example: {DESCRIPTIONS[function]}. Upload your own file to replace it."
    st.info(text, icon=":material/lightbulb:")
    return (str(uploads.store_file(*made)),)
