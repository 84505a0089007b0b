"""Kernel times of other tools: AIConfigurator, nccl-tests, nvbench, torch profiler, nsys; figures as published."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import changed, write
from capacity_validate import calibrate
from capacity_validate.calibrating import Calibration, base_profile
from capacity_validate.evidence import read_evidence
from capacity_validate.kernel_files import is_kernel_file, read_kernel_file
from capacity_validate.kernel_trace import kernel_class, read_nsys_table, read_trace

from capacity.base.errors import InvalidInput, MalformedFile

MEASURED = Path(__file__).parents[1] / "data" / "measured"
H100 = "NVIDIA H100 80GB HBM3"
GEMM = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
ATTENTION = (
    "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,"
    "attn_dtype,kv_cache_dtype,step,window_size,latency\n"
)
NCCL = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  15784 on  node-a device  0 [0009:01:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  24926 on  node-a device  1 [0009:02:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
     1048576        262144     float     sum      -1   339.61    3.09    3.09       0   335.85    3.12    3.12       0
     2097152        524288     float     sum      -1   355.53    5.90    5.90       0   361.77    5.80    5.80       0
# Out of bounds values : 0 OK
"""  # noqa: W291
NSYS = """Processing [report1.sqlite] with [cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.1,99385786,32,3105805.8,3041179.0,2987340,3777790,216832.4,flash_attention_prefill_f16
16.2,32179988,128,251406.2,249467.5,113790,390073,135318.3,ampere_fp16_s1688gemm_fp16_64x128_sliced1x2_ldg8_f2f_tn
0.5,992557,63,15754.9,16480.0,12863,20544,2378.5,fused_add_rmsnorm_f16
"""


def perf_rows(name: str, gpu: str, header: str, row: str) -> str:
    """Public rows of vLLM's kernels, in the form in which AIConfigurator publishes them."""
    with (MEASURED / f"{name}.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["gpu"] == gpu and r["engine"] == "vllm"]
    lines = (
        f"VLLM,{r['engine_version']},{H100}," + row.format(**r, ms=float(r["latency_us"]) / 1e3) for r in rows
    )
    return header + "\n".join(lines) + "\n"


def test_public_tables_are_fitted_by_the_harness(tmp_path: Path) -> None:
    gemm = perf_rows("silicon_gemm_h100", "h100", GEMM, "gemm,{kernel_source},{quant},{m},{n},{k},{ms}")
    attention = perf_rows(
        "silicon_attention_generation",
        "h100",
        ATTENTION,
        "generation_attention,{kernel_source},{batch_size},{isl},{num_heads},{num_kv_heads},{head_dim},1,{attn_dtype},"
        "{kv_cache_dtype},{step},{window_size},{ms}",
    )
    files = [
        write(tmp_path / "gemm_perf.txt", gemm),
        write(tmp_path / "generation_attention_perf.txt", attention),
    ]
    answer = calibrate(files, name="t", out=tmp_path / "out")
    assert isinstance(answer, Calibration)
    assert answer.profile == "h100-sxm-80gb@t"  # found by the device in the files
    assert max(answer.errors["gemm bf16"]) < 0.15
    assert any("kernels that the harness times differently" in notice for notice in answer.notices)
    assert any(line.startswith("note: ") for line in answer.lines())


@pytest.mark.parametrize(
    ("header", "row", "case"),
    [
        (GEMM, "gemm,torch.nn.functional.linear,bfloat16,128,4096,1024,0.02", "gemm/bf16/k=1024,m=128,n=4096"),
        (GEMM, "gemm,CutlassFP8,fp8,128,4096,1024,0.02", None),  # with the quantization of activations
        (ATTENTION, "generation_attention,fa3,4,1,32,8,128,1,bfloat16,fp8,4095,0,0.03",
         "decode_attention/fp8/paged/batch=4,context=4096,head_dim=128,heads=32,kv_heads=8"),
        (ATTENTION, "generation_attention,fa3,4,1,32,8,128,1,bfloat16,bfloat16,4095,128,0.03", None),  # a window
        (ATTENTION, "context_attention,fa3,1,2048,32,8,128,1,bfloat16,bfloat16,0,0,0.3",
         "prefill_attention/bf16/flash/batch=1,head_dim=128,heads=32,kv_heads=8,tokens=2048"),
        (ATTENTION, "context_attention,fa3,1,2048,32,8,128,1,bfloat16,bfloat16,64,0,0.3", None),  # a cached prefix
        ("framework,version,device,op_name,kernel_source,mla_dtype,kv_cache_dtype,num_heads,batch_size,isl,tp_size,step,latency\n",
         "generation_mla,flashmla,bfloat16,bfloat16,16,8,1,1,1023,0.03",
         "mla_decode/bf16/batch=8,context=1024,heads=16,latent=512,nope=128,rope=64"),
        ("framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
         "moe_tp_size,moe_ep_size,distribution,latency\n",
         "moe,fused_moe,bfloat16,64,2048,768,8,128,2,1,balanced,0.1",
         "moe/bf16/grouped/experts=128,hidden=2048,intermediate=384,tokens=64,top_k=8"),
        ("framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n",
         "all_gather,NCCL,half,4,4096,0.02", "collective/nccl/all_gather/bytes=2048,ranks=4"),
    ],
)  # fmt: skip
def test_rows_of_aiconfigurator_become_cases(tmp_path: Path, header: str, row: str, case: str | None) -> None:
    path = write(tmp_path / "perf.txt", f"{header}VLLM,0.11.0,{H100},{row}\n")
    if case is None:
        with pytest.raises(MalformedFile, match="contains no row that can be calibrated on: 1 rows"):
            read_kernel_file(path)
        return
    found = read_kernel_file(path)
    (measured,) = found.cases
    assert measured.case.id == case
    assert measured.seconds == pytest.approx(float(row.rpartition(",")[2]) * 1e-3)
    assert found.environment["device"] == H100
    assert found.environment["engine_version"] == "0.11.0"


def test_output_of_nccl_tests(tmp_path: Path) -> None:
    found = read_kernel_file(write(tmp_path / "all_reduce_perf.log", NCCL))
    assert [case.case.id for case in found.cases] == [
        "collective/nccl/all_reduce/bytes=1048576,ranks=2",
        "collective/nccl/all_reduce/bytes=2097152,ranks=2",
    ]
    assert found.cases[0].seconds == pytest.approx(335.85e-6)  # in place, as engines do
    assert found.environment["device"] == H100
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in NCCL.splitlines())
    assert len(read_kernel_file(write(tmp_path / "all_reduce_perf.mpi", tagged)).cases) == 2
    with pytest.raises(MalformedFile, match="the program of nccl-tests"):
        read_kernel_file(write(tmp_path / "out.txt", NCCL))


def nvbench(**axes: str) -> dict[str, Any]:
    values = [{"name": name, "type": "int64", "value": value} for name, value in axes.items()]
    data = [{"name": "value", "type": "float64", "value": "1.25e-05"}]
    state = {
        "name": "Device=0", "device": 0, "is_skipped": False, "axis_values": values,
        "summaries": [{"tag": "nv/cold/time/gpu/mean", "name": "GPU Time", "hint": "duration", "data": data}],
    }  # fmt: skip
    return {
        "devices": [{"id": 0, "name": "NVIDIA GeForce RTX 4090"}],
        "benchmarks": [{"name": "copy", "states": [state]}],
    }


def test_nvbench_is_not_taken_for_a_benchmark_of_a_server(tmp_path: Path) -> None:
    gemm = nvbench(**{"T{ct}": "BF16", "M": "64", "N": "4096", "K": "1024"})
    path = write(tmp_path / "gemm.json", gemm)
    assert read_evidence([path]).measurements == (str(path),)
    found = read_kernel_file(path)
    assert [(c.case.id, c.seconds) for c in found.cases] == [("gemm/bf16/k=1024,m=64,n=4096", 1.25e-5)]
    assert base_profile([found], gpu=None, directories=()).name == "rtx-4090-24gb"
    with pytest.raises(MalformedFile, match=r"contains no matrix multiplication .* only copy"):
        read_kernel_file(write(tmp_path / "copy.json", nvbench(BlockSize="256")))


def trace(shapes: bool = True) -> dict[str, Any]:
    """A decode step as the torch profiler writes it: times in us, kernels joined to operators by External id."""

    def kernel(name: str, ts: float, dur: float, external: int, stream: int = 7) -> dict[str, Any]:
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
                "args": {"External id": external, "device": 0, "stream": stream, "grid": [132, 1, 1]}}  # fmt: skip

    products = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0.0, "dur": 40.0,
         "args": {"External id": 1, "Input type": ["c10::BFloat16", "c10::BFloat16"],
                  "Input Dims": [[64, 3584], [3584, 4096]]}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 50.0, "dur": 40.0,
         "args": {"External id": 2, "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar"],
                  "Input Dims": [[1000], [64, 2048], [2048, 1000], []]}},
    ]  # fmt: skip
    kernels = [
        kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", 100.0, 30.0, 1),
        kernel("void flash::flash_fwd_splitkv_kernel<...>", 150.0, 20.0, 3),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 160.0, 20.0, 4, stream=20),
        kernel("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", 190.0, 8.0, 2),
        kernel("void cublasLt::splitKreduce_kernel<32>", 198.0, 2.0, 2),
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 1e9},
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        "traceEvents": [*(products if shapes else []), *kernels],
    }


def test_trace_gives_classes_gaps_overlap_and_products(tmp_path: Path) -> None:
    found = read_trace("t.json", json.dumps(trace()))
    seconds = {name: pytest.approx(value * 1e-6) for name, value in
               (("products", 40.0), ("attention", 20.0), ("collectives", 20.0))}  # fmt: skip
    assert found.seconds == seconds
    assert found.idle == pytest.approx(0.3)  # 70 of 100 us busy
    assert found.overlapped == pytest.approx(0.5)
    assert {case.case.id: case.seconds for case in found.cases} == {
        "gemm/bf16/k=3584,m=64,n=4096": pytest.approx(30e-6),
        "gemm/bf16/k=2048,m=64,n=1000": pytest.approx(10e-6),  # with its reduction
    }
    path = tmp_path / "rank0.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace()).encode()))
    (source,) = read_evidence([path]).measurements
    assert base_profile([read_kernel_file(source)], gpu=None, directories=()).name == "h100-sxm-80gb"
    without = write(tmp_path / "graphs.json", trace(shapes=False))
    with pytest.raises(
        MalformedFile, match=r"no kernel with its shape.*products 50%.*GPU idle 30%.*50% of the coll"
    ):
        calibrate([without], gpu="h100")


def test_tables_of_nsys(tmp_path: Path) -> None:
    totals = read_nsys_table("k.csv", NSYS)
    assert totals.seconds["attention"] == pytest.approx(0.099385786)
    assert totals.kernels == 223
    assert totals.idle is None
    with pytest.raises(MalformedFile, match="no kernel with its shape"):
        read_kernel_file(write(tmp_path / "kernels.csv", NSYS))
    timeline = (
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,Device,Strm,Name\n"
        "1000,300,1,132,1,1,NVIDIA H100 80GB HBM3 (0),7,nvjet_tst_64\n"
        "1500,500,2,8,1,1,NVIDIA H100 80GB HBM3 (0),20,ncclDevKernel_AllReduce\n"
        "1600,9,3,,,,NVIDIA H100 80GB HBM3 (0),7,[CUDA memcpy Host-to-Device]\n"
    )
    assert read_nsys_table("t.csv", timeline).idle == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collectives"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", "collectives"),
        ("fused_moe_kernel", "experts"),
        ("void vllm::reshape_and_cache_flash_kernel<unsigned short>", "KV cache"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("nvjet_sm90_tst_192x208_64x4_2x1_v_bz_coopB_bias_TNT", "products"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>", "products"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>", "elementwise"),
        ("Memcpy of nobody", "other"),
    ],
)
def test_kernel_names_give_their_class(name: str, found: str) -> None:
    assert kernel_class(name) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"traceEvents": 3}', "not a list"),
        ('{"traceEvents": [{"cat": "cpu_op"}]}', "no GPU kernels"),
        (GEMM + "VLLM,1,X,gemm,k,bfloat16,x,2,3,0.1\n", "file of AIConfigurator, but has another structure"),
        ("Time (%),Total Time (ns),Instances,Name\n1,x,2,k\n", "another structure"),
        ('{"devices": [3], "benchmarks": [{"states": [{"summaries": [{"tag": "nv/cold/time/gpu/mean", "data": 3}]}]}]}',
         "file of nvbench, but has another structure"),
    ],
)  # fmt: skip
def test_damaged_kernel_files_are_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    assert is_kernel_file(text)
    with pytest.raises(MalformedFile, match=problem) as refused:
        read_kernel_file(write(tmp_path / "f", text))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("document", [trace(), nvbench(T="BF16", M="64", N="64", K="64")])
def test_no_value_of_a_wrong_kind_gets_further_than_one_line(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    path, read, complaints = tmp_path / "k.json", 0, 0
    for bad in (None, "x", [None], float("nan")):
        for hostile in changed(document, bad):
            text = write(path, hostile).read_text()
            if not is_kernel_file(text):
                continue
            try:
                read += all(case.seconds > 0 for case in read_kernel_file(path).cases)
            except MalformedFile as error:
                complaints += "\n" in str(error)
    assert read > 50
    assert not complaints


def test_file_without_a_known_gpu_asks_for_it(tmp_path: Path) -> None:
    file = write(tmp_path / "p.txt", f"{GEMM}VLLM,0.11.0,hwX,gemm,k,bfloat16,1,64,64,0.1\n")
    with pytest.raises(InvalidInput, match="does not name a GPU that has a profile: add --gpu"):
        calibrate([file])
