"""Run vLLM's scheduler in this Python environment for another process; this file imports nothing of the library.

`python worker.py [FOLDER]` reads JSON objects from standard input, one per line, and answers each with one line on
standard output. FOLDER contains the package `vllm`; by default the installed package is imported. The first line of
output has vLLM's version and the names of its settings. The commands are: `open` a scheduler, `add` a request,
`schedule` a step, `update` it with the numbers of sampled tokens, `abort` a request. No GPU and no compiled extension
is used. `process.py` sends the commands.
"""

import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import traceback
import types
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import fields
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]  # a line of the pipe

# packages that vLLM imports for work that no scheduler does; each is replaced only where it is not installed
NOT_NEEDED = (
    "anthropic", "blake3", "cbor2", "compressed_tensors", "cpuinfo", "cv2", "depyf", "diskcache", "einops",
    "fastapi", "fastsafetensors", "flashinfer", "gguf", "ijson", "lark", "llguidance", "lmformatenforcer", "mcp",
    "mistral_common", "model_hosting_container_standards", "ninja", "numba", "openai", "openai_harmony",
    "opentelemetry", "outlines_core", "partial_json_parser", "prometheus_client",
    "prometheus_fastapi_instrumentator", "py_cpuinfo", "pybase64", "pythonjsonlogger", "sentencepiece",
    "setproctitle", "soundfile", "tiktoken", "uvicorn", "uvloop", "watchfiles", "xgrammar",
)  # fmt: skip


class InertType(type):
    """Stand-in for a class that is not needed: its attributes are stand-ins too, and its instances accept any call."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_inert(name)

    def __getitem__(cls, item: object) -> Any:
        return cls


def make_inert(name: str) -> InertType:
    """Return an inert class; used as a decorator, it returns the function unchanged."""

    def create(cls: Any, *values: Any, **keywords: Any) -> Any:
        decorates = len(values) == 1 and not keywords and inspect.isfunction(values[0])
        return values[0] if decorates else object.__new__(cls)

    def schema(*_: Any) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()

    members = {
        "__new__": create,
        "__init__": lambda *_, **__: None,
        "__call__": lambda *values, **_: values[-1],
    }
    return InertType(name, (), {**members, "__get_pydantic_core_schema__": staticmethod(schema)})


class InertModule(types.ModuleType):
    """Stand-in for a module that is not needed; its attributes are inert classes."""

    __path__: Any = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = make_inert(name)
        setattr(self, name, found)
        return found


class InertFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder that provides the packages in NOT_NEEDED as inert modules if they are not installed."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.partition(".")[0] in NOT_NEEDED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module has no code."""


class Settings(types.SimpleNamespace):
    """Stand-in for a part of vLLM's configuration; every setting without a value is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class SpeculativeSettings(Settings):
    """Stand-in for vLLM's speculative configuration; methods such as `use_eagle` return False unless they are set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("use", "need", "disable")):
            return lambda *_, **__: False
        return super().__getattr__(name)


class FreeText:
    """Stand-in for vLLM's structured-output manager, for requests without a grammar."""

    def should_advance(self, *_: Any, **__: Any) -> bool:
        return False

    def accept_tokens(self, *_: Any) -> bool:
        return True

    def validate_tokens(self, _: Any, tokens: Any) -> Any:
        return tokens

    def grammar_bitmask(self, *_: Any, **__: Any) -> None:
        return None


class Vllm:
    """Classes and functions of vLLM that this worker uses, as attributes with vLLM's names."""

    def __init__(self) -> None:
        names = {
            "vllm.v1.core.sched.scheduler": "Scheduler",
            "vllm.v1.core.sched.async_scheduler": "AsyncScheduler",
            "vllm.v1.kv_cache_interface": "KVCacheConfig KVCacheGroupSpec FullAttentionSpec SlidingWindowSpec",
            "vllm.v1.core.kv_cache_utils": "get_request_block_hasher init_none_hash",
            "vllm.v1.request": "Request RequestStatus",
            "vllm.v1.outputs": "ModelRunnerOutput DraftTokenIds",
            "vllm.sampling_params": "SamplingParams",
            "vllm.utils.hashing": "sha256",
            "vllm.config": "SchedulerConfig",
        }
        for module, wanted in names.items():
            found = importlib.import_module(module)
            for name in wanted.split():
                setattr(self, name, getattr(found, name))
        self.version = str(importlib.import_module("vllm").__version__)
        self.dtype = importlib.import_module("torch").float32
        self.init_none_hash(self.sha256)
        self.settings = [field.name for field in fields(self.SchedulerConfig)]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class OpenScheduler:
    """One vLLM scheduler with its KV cache, its requests, and its steps in flight."""

    def __init__(self, vllm: Vllm, given: Json) -> None:
        self.vllm = vllm
        self.block_size = given["block_size"]
        self.drafts = given["draft_tokens"]
        self.asynchronous = given["asynchronous"]
        self.hasher = vllm.get_request_block_hasher(self.block_size, vllm.sha256)
        self.requests: MutableMapping[str, Any] = {}  # by name
        self.outputs: dict[str, list[int]] = {}  # ids of its blocks
        self.in_flight: deque[tuple[Any, list[str]]] = deque()
        blocks = given["num_blocks"] + 1  # with the null block
        common = {"block_size": self.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": vllm.dtype}
        groups = [
            vllm.KVCacheGroupSpec(
                [f"layer{number}"],
                vllm.FullAttentionSpec(**common)
                if window is None
                else vllm.SlidingWindowSpec(sliding_window=window, **common),
            )
            for number, window in enumerate(given["windows"])
        ]
        kv = vllm.KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        kind = vllm.AsyncScheduler if self.asynchronous else vllm.Scheduler
        self.scheduler = kind(
            vllm_config=self._config(given, blocks),
            kv_cache_config=kv,
            structured_output_manager=FreeText(),
            block_size=self.block_size,
            log_stats=False,
        )

    def _config(self, given: Json, blocks: int) -> Settings:
        """Return the parts of a `VllmConfig` that a scheduler reads."""
        return Settings(
            scheduler_config=self._scheduler_config(given),
            cache_config=Settings(
                num_gpu_blocks=blocks,
                block_size=self.block_size,
                enable_prefix_caching=given["prefix_caching"],
                enable_mamba_shared_prefix_checkpoint=False,
                mamba_cache_mode="none",
            ),
            speculative_config=self._speculative_config(given) if self.drafts else None,
            model_config=Settings(
                max_model_len=given["max_model_len"],
                runner_type="generate",
                uses_mrope=False,
                is_encoder_decoder=False,
                is_diffusion=False,
                supports_multimodal_inputs=False,
                return_sampling_mask=False,
            ),
            parallel_config=Settings(
                data_parallel_index=0,
                data_parallel_size=1,
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                pipeline_parallel_size=given["pipeline_stages"],
            ),
            observability_config=Settings(per_request_spec_decode_metrics="none"),
            ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
            aux_output_config=Settings(enabled=False),
            is_mm_encoder_only=False,
            num_speculative_tokens=self.drafts,
            num_lookahead_tokens=given["lookahead_slots"],
            num_prefill_lookahead_tokens=0,
            num_hash_lookahead_tokens=0,
            use_v2_model_runner=self.asynchronous and given["pipeline_stages"] > 1,
            max_concurrent_batches=given["steps_in_flight"],
            max_in_flight_tokens=given["steps_in_flight"] * given["max_num_batched_tokens"],
        )

    def _scheduler_config(self, given: Json) -> Settings:
        defaults = {
            "policy": "fcfs",
            "watermark": 0.0,
            "long_prefill_token_threshold": 0,
            "long_prefill_token_threshold_adaptive": False,
            "prefill_schedule_interval": 1,
            "disable_chunked_mm_input": False,
        }
        return Settings(
            **{**defaults, **given["changed"]},
            max_num_seqs=given["max_num_seqs"],
            max_num_batched_tokens=given["max_num_batched_tokens"],
            enable_chunked_prefill=given["enable_chunked_prefill"],
            async_scheduling=self.asynchronous,
            scheduler_reserve_full_isl=given["reserve_full_isl"],
        )

    def _speculative_config(self, given: Json) -> SpeculativeSettings:
        return SpeculativeSettings(
            num_speculative_tokens=self.drafts,
            max_num_new_slots_for_drafting=0,
            uses_draft_model=lambda: given["lookahead_slots"] > 0,
            disable_eagle_block_drop=False,
        )

    def add(self, number: str, prompt_tokens: int, blocks: list[int], **given: Any) -> None:
        """Add a request. The block's id is used as the token id of all its tokens, so equal ids mean equal prefixes."""
        sampling = self.vllm.SamplingParams(max_tokens=given["max_tokens"], ignore_eos=True, temperature=0.0)
        has_eos = "eos_token_id" in inspect.signature(self.vllm.Request).parameters  # until vLLM 0.16
        request = self.vllm.Request(
            request_id=number,
            prompt_token_ids=[blocks[at // self.block_size] for at in range(prompt_tokens)],
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=given["arrival"],
            priority=given["priority"],
            block_hasher=self.hasher,
            **({"eos_token_id": None} if has_eos else {}),
        )
        self.requests[number] = request
        self.outputs[number] = blocks
        self.scheduler.add_request(request)

    def abort(self, number: str) -> None:
        self.scheduler.finish_requests(number, self.vllm.RequestStatus.FINISHED_ABORTED)
        self._forget([number])

    def _forget(self, numbers: list[str]) -> None:
        """Discard requests that have ended and are in no step in flight."""
        needed = {number for _, others in self.in_flight for number in others}
        for number in numbers:
            if number not in needed and self.requests[number].is_finished():
                del self.requests[number], self.outputs[number]

    def schedule(self) -> Json:
        """Schedule a step; return its rows: request number, tokens, computed tokens, drafts, and whether it samples."""
        before = [request.request_id for request in self.scheduler.running]
        output = self.scheduler.schedule()
        preempted = self.vllm.RequestStatus.PREEMPTED
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        drafts = output.scheduled_spec_decode_tokens
        rows = [
            (
                number,
                tokens,
                computed[number],
                len(drafts.get(number, ())),
                not self.requests[number].is_prefill_chunk,
            )
            for number, tokens in output.num_scheduled_tokens.items()
        ]
        gone = [number for number in before if self.requests[number].status == preempted]
        step = (output, [row[0] for row in rows])
        if rows or gone:
            self.in_flight.append(step)
        else:
            self._finish(step, {})
        return {"rows": rows, "preempted": gone}

    def update(self, sampled: dict[str, int]) -> Json:
        """Apply the numbers of `sampled` tokens to the oldest step in flight; return the number of tokens that each
        request keeps, and the requests that ended."""
        step = self.in_flight.popleft()
        requests = [(number, self.requests[number]) for number in step[1]]
        had = {number: (request.num_output_tokens, request.is_finished()) for number, request in requests}
        self._finish(step, sampled)
        kept = {number: request.num_output_tokens - had[number][0] for number, request in requests}
        ended = [number for number, request in requests if request.is_finished() and not had[number][1]]
        self._forget(step[1])
        return {"kept": kept, "finished": ended}

    def _finish(self, step: tuple[Any, list[str]], sampled: dict[str, int]) -> None:
        output, numbers = step
        result = self.vllm.ModelRunnerOutput(
            req_ids=numbers,
            req_id_to_index={number: at for at, number in enumerate(numbers)},
            sampled_token_ids=[self._tokens(number, sampled.get(number, 0)) for number in numbers],
        )
        self.scheduler.update_from_output(output, result)
        if self.drafts and not self.asynchronous:
            there = [number for number in numbers if number in self.scheduler.requests]
            drafted = [[0] * self.drafts for _ in there]
            self.scheduler.update_draft_token_ids(self.vllm.DraftTokenIds(there, drafted))

    def _tokens(self, number: str, count: int) -> list[int]:
        """Return the token ids of a request's next `count` sampled tokens."""
        blocks, begin = self.outputs[number], self.requests[number].num_tokens
        return [blocks[min(at // self.block_size, len(blocks) - 1)] for at in range(begin, begin + count)]

    def state(self) -> dict[str, int]:
        running, unfinished = len(self.scheduler.running), self.scheduler.get_num_unfinished_requests()
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return {"free": free, "running": running, "waiting": unfinished - running}


def explain(error: BaseException) -> str:
    """Return an error as one line, with the last place in vLLM's code in its traceback."""
    message = " ".join(str(error).split())[:300]
    folder = f"{os.sep}vllm{os.sep}"
    places = [at for at in traceback.extract_tb(error.__traceback__) if folder in at.filename]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{where}"


def main() -> None:
    """Run commands from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints must not mix with the answers

    def answer(found: Json) -> None:
        print(json.dumps(found), file=answers, flush=True)

    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*sys.argv[1:2], *(path for path in sys.path if path != here)]
    sys.meta_path.append(InertFinder())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        vllm = Vllm()
    except ModuleNotFoundError as error:
        answer({"missing": error.name})
        return
    except Exception as error:
        answer({"error": explain(error)})
        return
    answer({"version": vllm.version, "settings": vllm.settings})
    schedulers: dict[int, OpenScheduler] = {}
    for line in sys.stdin:
        question = json.loads(line)
        verb, of = question.pop("verb"), question.pop("of")
        for closed in question.pop("close"):
            schedulers.pop(closed, None)
        try:
            if verb == "open":
                schedulers[of] = OpenScheduler(vllm, question)
                answer({})
            else:
                scheduler = schedulers[of]
                answer((getattr(scheduler, verb)(**question) or {}) | scheduler.state())
        except Exception as error:
            answer({"error": explain(error)})


if __name__ == "__main__":
    main()
