"""What people have, recognised by content; and addresses that are read with care."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from benchmark_files import vllm_result, write
from capacity_validate import evidence
from capacity_validate.benchmark_results import MeasuredRun
from capacity_validate.evidence import Evidence, read_evidence

from capacity.base.errors import InvalidInput, MalformedFile

METRICS = (
    'vllm:request_success_total{model_name="m"} 4\nvllm:time_to_first_token_seconds_sum{model_name="m"} 1.0\n'
    'vllm:time_to_first_token_seconds_count{model_name="m"} 4\n'
)
LOG = "INFO [kv_cache_utils.py:1229] GPU KV cache size: 422,112 tokens\n"


class Answers(BaseHTTPRequestHandler):
    """A scrape at /metrics, a redirect to it, an endless page, and nothing else."""

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/metrics")
            self.end_headers()
            return
        known = self.path in ("/metrics", "/long")
        self.send_response(200 if known else 404)
        self.end_headers()
        if known:
            self.wfile.write((METRICS * (2000 if self.path == "/long" else 1)).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_kind_is_known_by_its_content(tmp_path: Path) -> None:
    found = read_evidence(
        [
            write(tmp_path / "a.txt", vllm_result()),
            write(tmp_path / "b.txt", METRICS),
            write(tmp_path / "c.txt", LOG),
            write(tmp_path / "d.txt", '{"schema": "capacity/measurements/v1"}\n'),
        ]
    )
    assert [run.tool for run in found.runs] == ["vllm bench serve", "vLLM metrics"]
    assert found.log is not None
    assert found.log.kv_tokens == 422_112
    assert found.server is found.log
    assert found.measurements == (str(tmp_path / "d.txt"),)
    assert found.runs[0].model == "meta-llama/Llama-3.1-8B-Instruct"


def test_metrics_at_an_address(address: str) -> None:
    (run,) = read_evidence([f"{address}/metrics"]).runs
    assert run.latencies_ms["ttft"]["mean"] == pytest.approx(250.0)


def test_addresses_that_are_not_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="returned 404"):
        read_evidence([f"{address}/nowhere"])
    with pytest.raises(InvalidInput, match="returned 302"):  # only what was named is asked
        read_evidence([f"{address}/moved"])
    for other in ("file:///etc/hostname", "ftp://127.0.0.1/x", "gopher://x"):
        with pytest.raises(InvalidInput, match="only http and https"):
            read_evidence([other])
    monkeypatch.setattr(evidence, "FETCH_BYTES", 10_000)
    with pytest.raises(InvalidInput, match="returned more than"):
        read_evidence([f"{address}/long"])
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_evidence(["http://127.0.0.1:1/metrics"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "neither a supported benchmark result"),
        ("", "neither a supported benchmark result"),
        ("{", "not JSON"),
        ("[]", "not a supported benchmark result|is empty|another structure"),
        ("[" * 100_000, "not JSON"),
        ('{"a": 1}', "not a supported benchmark result"),
        ('{"a": ' + "9" * 10_000 + "}", "not JSON"),
        ("\x00\x01", "neither"),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MalformedFile, match=said) as refused:
        read_evidence([write(tmp_path / "x", text)])
    assert "\n" not in str(refused.value)


def test_logs_of_two_servers_are_not_one(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.log", LOG), write(tmp_path / "2.log", LOG.replace("422", "423"))
    assert read_evidence([one, one]).log is not None
    with pytest.raises(InvalidInput, match="different servers"):
        read_evidence([one, two])


def run_of(tool: str) -> MeasuredRun:
    return MeasuredRun(tool=tool, path="run.json", completed=1, failed=0, latencies_ms={}, num_requests=1)


def test_a_tool_of_one_engine_says_which_it_is() -> None:
    """And contradicts another that is named; a benchmark that speaks HTTP measures any."""
    native, over_http = (
        Evidence(sources=("run.json",), runs=(run_of("llama-bench"),)),
        Evidence(sources=("run.json",), runs=(run_of("vllm bench serve"),)),
    )
    assert native.engine(None) == native.engine("llama.cpp") == "llama.cpp"
    assert native.engine("llama.cpp@b7000") == "llama.cpp@b7000"
    assert over_http.engine(None) is None
    assert over_http.engine("sglang") == "sglang"
    with pytest.raises(
        InvalidInput, match=r"which measures llama\.cpp, not vllm@0\.15: use --engine llama\.cpp"
    ):
        native.engine("vllm@0.15")
    both = Evidence(sources=("run.json",), runs=(run_of("vLLM metrics"), run_of("trtllm-bench")))
    with pytest.raises(InvalidInput, match="which measures tensorrt-llm, not vllm"):
        both.engine(None)
