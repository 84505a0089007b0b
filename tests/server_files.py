"""Files of servers in the formats of other tools, on the structure of public files, with what they contain.

Names are changed. Sources, 2026-11: kserve/kserve docs/samples, llm-d-incubation/llm-d-modelservice examples,
vllm-project/production-stack tutorials/assets, ai-dynamo/dynamo examples/backends, ray-project/ray doc/source/serve,
skypilot-org/skypilot llm/vllm, llm-d/llm-d-model-service samples/msvcs. Options of `vllm serve --config`: a guide to
vLLM, a template of all settings, and SemiAnalysisAI/InferenceX benchmarks.
"""

from __future__ import annotations

from typing import Any

NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
RESOURCES = (
    "resources: {limits: {cpu: '4', memory: 32Gi, nvidia.com/gpu: '%d'}, requests: {nvidia.com/gpu: '%d'}}"
)


def resources(gpus: int) -> str:
    return RESOURCES % (gpus, gpus)


KSERVE = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: chat}}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 4
    model:
      modelFormat: {{name: huggingface}}
      args: [--model_name=chat, --model_id=org/m, --max-model-len=8192]
      env:
      - {{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{name: hf, key: token}}}}}}
      {resources(1)}
"""
KSERVE_RUNTIME = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {{name: vllm-runtime}}
spec:
  multiModel: false
  supportedModelFormats: [{{autoSelect: true, name: vLLM}}]
  containers:
  - name: kserve-container
    image: registry.example.com/vllm:2.25
    command: [python, -m, vllm.entrypoints.openai.api_server]
    args: [--port=8080, --model=/mnt/models, "--served-model-name={{{{.Name}}}}"]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: chat}}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {{name: vLLM}}
      runtime: vllm-runtime
      storageUri: hf://org/m
      args: [--tensor-parallel-size=2]
      {resources(2)}
    nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L40S}}
"""
LLM_SERVICE = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: chat}}
spec:
  replicas: 3
  model: {{uri: "hf://org/m", name: chat}}
  router: {{route: {{}}, gateway: {{}}, scheduler: {{}}}}
  template:
    containers:
    - name: main
      image: vllm/vllm-openai:v0.11.0
      {resources(1)}
      livenessProbe: {{httpGet: {{path: /health, port: 8000}}}}
"""
LLM_SERVICE_PD = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: chat-pd}}
spec:
  replicas: 1
  model: {{uri: "hf://org/m", name: org/m}}
  parallelism: {{tensor: 2}}
  template: &pod
    containers:
    - name: main
      env: [{{name: VLLM_ADDITIONAL_ARGS, value: "--kv_transfer_config '{NIXL.replace('"', chr(92) + '"')}'"}}]
      {resources(2)}
  prefill:
    replicas: 2
    parallelism: {{tensor: 2}}
    template: *pod
"""
STACK = """
servingEngineSpec:
  runtimeClassName: ""
  strategy: {type: Recreate}
  modelSpec:
  - name: chat
    repository: vllm/vllm-openai
    tag: v0.10.2
    modelURL: org/m
    replicaCount: 2
    requestCPU: 10
    requestMemory: 64Gi
    requestGPU: 2
    pvcStorage: 50Gi
    vllmConfig:
      enableChunkedPrefill: false
      maxModelLen: 4096
      dtype: bfloat16
      tensorParallelSize: 2
      extraArgs: ["--gpu-memory-utilization", "0.8"]
    hf_token: {secretName: hf, secretKey: token}
"""
STACK_MINIMAL = """
servingEngineSpec:
  modelSpec:
  - {name: small, repository: vllm/vllm-openai, tag: latest, modelURL: org/m, replicaCount: 1, requestCPU: 6,
     requestMemory: 16Gi, requestGPU: 1, pvcStorage: 10Gi}
routerSpec: {repository: lmcache/lmstack-router, tag: latest}
"""
STACK_LMCACHE = """
servingEngineSpec:
  modelSpec:
  - name: chat
    repository: lmcache/vllm-openai
    tag: 2025-04-18
    modelURL: org/m
    replicaCount: 1
    requestGPU: 1
    vllmConfig: {enablePrefixCaching: true, maxModelLen: 16384}
    lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "20"}
cacheserverSpec: {replicaCount: 1}
"""
LLM_D = f"""
multinode: false
modelArtifacts: {{name: org/m, uri: 'hf://"{{{{ .Values.modelArtifacts.name }}}}"', size: 20Gi}}
routing: {{servicePort: 8000, proxy: {{secure: false}}}}
decode:
  create: true
  replicas: 1
  parallelism: {{tensor: 2, data: 1}}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d:v0.2.0
    modelCommand: vllmServe
    args: [--enforce-eager, --kv-transfer-config, '{NIXL}']
    {resources(2)}
    mountModelVolume: true
prefill:
  create: true
  replicas: 2
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d:v0.2.0
    modelCommand: vllmServe
    args: [--enforce-eager, --kv-transfer-config, '{NIXL}']
    {resources(1)}
"""
LLM_D_AGGREGATED = LLM_D.replace("prefill:\n  create: true", "prefill:\n  create: false")
MODEL_SERVICE = """
apiVersion: llm-d.ai/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  modelArtifacts: {uri: "hf://org/m"}
  routing: {modelName: org/m}
  decode:
    replicas: 2
    containers: [{name: vllm, args: [--max-num-seqs, "64"]}]
  endpointPicker: {}
"""
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: sglang-disagg}
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      extraPodSpec: {mainContainer: {image: nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.1}}
    decode:
      envFromSecret: hf-token-secret
      componentType: worker
      subComponentType: decode
      replicas: 1
      resources: {limits: {gpu: "1"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.1
          workingDir: /workspace
          command: [python3, -m, dynamo.sglang]
          args: [--model-path, org/m, --page-size, "16", --tp, "1", --disaggregation-mode, decode]
    prefill:
      envFromSecret: hf-token-secret
      componentType: worker
      subComponentType: prefill
      replicas: 3
      resources: {limits: {gpu: "1"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.1
          command: [python3, -m, dynamo.sglang]
          args: [--model-path, org/m, --page-size, "16", --tp, "1", --disaggregation-mode, prefill]
"""
DYNAMO_VLLM = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: vllm-agg}
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      extraPodSpec: {mainContainer: {image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0}}
    VllmDecodeWorker:
      componentType: worker
      replicas: 2
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, org/m, --tensor-parallel-size, "2"]
"""
DYNAMO_BETA = """
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: structural-tag}
spec:
  components:
  - name: Frontend
    type: frontend
    replicas: 1
    podTemplate: {spec: {containers: [{name: main, image: "${RUNTIME_IMAGE}"}]}}
  - name: SGLangWorker
    type: worker
    replicas: 1
    podTemplate:
      spec:
        containers:
        - name: main
          image: ${RUNTIME_IMAGE}
          envFrom: [{secretRef: {name: hf-token-secret}}]
          command: [python3, -m, dynamo.sglang]
          args: [--model-path, org/m, --served-model-name, chat]
"""
RAY = """
applications:
- name: llm_app
  route_prefix: /
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: chat, model_source: org/m}
      accelerator_type: L4
      engine_kwargs: {max_model_len: 8192, tensor_parallel_size: 2, trust_remote_code: false}
      deployment_config: {autoscaling_config: {min_replicas: 1, max_replicas: 2}}
"""
RAY_BUCKET = """
applications:
- args:
    llm_configs:
    - accelerator_type: A100-80G
      engine_kwargs: {max_model_len: 8192}
      model_loading_config: {model_id: org/m, model_source: {bucket_uri: "s3://bucket/m"}}
      deployment_config: {num_replicas: 3}
      lora_config: {max_num_adapters_per_replica: 16}
  import_path: ray.serve.llm:build_openai_app
  name: llm_app
"""
RAY_SERVICE = """
apiVersion: ray.io/v1
kind: RayService
metadata: {name: llm-serve}
spec:
  serveConfigV2: |
    applications:
    - name: llm
      import_path: ray.serve.llm:build_openai_app
      args:
        llm_configs:
        - model_loading_config: {model_id: org/m}
          engine_kwargs: {max_model_len: 4096, gpu_memory_utilization: 0.88}
  rayClusterConfig: {rayVersion: 2.52.0}
"""
SKYPILOT_IMAGE = """
envs:
  MODEL_NAME: org/m
  HF_TOKEN: null
resources:
  image_id: docker:vllm/vllm-openai:latest
  accelerators: {L4:1, A10G:1, A10:1, A100:1, A100-80GB:1}
  ports:
    - 8000
setup: |
  python3 -c "import huggingface_hub; huggingface_hub.login('${HF_TOKEN}')"
run: |
  echo 'Starting the server...'
  python -m vllm.entrypoints.openai.api_server \\
    --model $MODEL_NAME --tokenizer org/tokenizer \\
    --host 0.0.0.0
"""
SKYPILOT_SERVICE = """
envs:
  MODEL_NAME: org/m
secrets:
  HF_TOKEN: null
resources:
  accelerators: { H100:8, H200:8, B100:8, B200:8, GB200:8 }
  cpus: 32+
  disk_size: 512
  disk_tier: best
  ports: 8081
setup: |
  pip install vllm>=0.10.0
run: |
  echo 'Starting the server...'

  vllm serve $MODEL_NAME \\
    --port 8081 \\
    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE \\
    --max-model-len 430000

service:
  replicas: 2
  readiness_probe:
    timeout_seconds: 60
    path: /v1/chat/completions
    post_data:
      model: $MODEL_NAME
      messages:
        - role: user
          content: Hello
      max_tokens: 1
"""
SKYPILOT_MIXED_COUNTS = """
service:
  readiness_probe: /v1/models
  replicas: 2
resources:
  ports: 8080
  accelerators: {L4:8, A10g:8, A100:4, A100:8, A100-80GB:2, A100-80GB:4, A100-80GB:8}
setup: |
  conda create -n vllm python=3.9 -y
  conda activate vllm
  pip install vllm
run: |
  conda activate vllm
  python -m vllm.entrypoints.openai.api_server \\
    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE \\
    --host 0.0.0.0 --port 8080 \\
    --model org/m
"""
MODEL_SERVICE_LARGE = """
apiVersion: llm-d.ai/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  decoupleScaling: false
  baseConfigMapRef: {name: base}
  routing:
    modelName: org/m
    ports: [{name: app_port, port: 8000}, {name: internal_port, port: 8200}]
  modelArtifacts: {uri: "pvc://claim/path/to/m"}
  decode: &pods
    replicas: 1
    parallelism: {tensor: 8}
    containers:
    - name: vllm
      args:
      - '/cache/{{ .ModelPath }}'
      - "--tensor-parallel-size"
      - "8"
      - "--max-model-len"
      - "1000000"
      - '--override-generation-config={"attn_temperature_tuning": true}'
    acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100]}
  prefill: *pods
"""
MODEL_SERVICE_REPLICAS = """
apiVersion: llm-d.ai/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  decoupleScaling: false
  baseConfigMapRef: {name: base}
  routing: {modelName: org/m, ports: [{name: app_port, port: 8000}, {name: internal_port, port: 8200}]}
  modelArtifacts: {uri: "pvc://claim/path/to/m"}
  decode:
    replicas: 2
    containers: [{name: vllm, args: ['/stored/models/{{ .ModelPath }}']}]
    acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-A100-SXM4-80GB]}
  prefill:
    replicas: 1
    containers: [{name: vllm, args: ['/stored/models/{{ .ModelPath }}']}]
    acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-A100-SXM4-80GB]}
"""
MODEL_SERVICE_TEMPLATED = """
apiVersion: llm-d.ai/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  decoupleScaling: false
  baseConfigMapRef: {name: base}
  routing: {modelName: org/m}
  modelArtifacts: {uri: "hf://org/m"}
  decode:
    replicas: 1
    acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-A100-SXM4-80GB]}
    containers: [{name: vllm, args: ["{{ .HFModelName }}"]}]
  prefill:
    replicas: 1
    acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-A100-SXM4-80GB]}
    containers: [{name: vllm, args: ["{{ .HFModelName }}"]}]
"""
CONFIG_PIPELINE = """
model: org/m
host: 0.0.0.0
port: 8000
dtype: auto
tensor-parallel-size: 1
pipeline-parallel-size: 2
gpu-memory-utilization: 0.90
enable-prefix-caching: true
"""
CONFIG_UNDERSCORES = """
# settings

# model
model: "org/m"

revision: null

tensor_parallel_size: 1
host: "0.0.0.0"
port: 8000
gpu_memory_utilization: 0.9
dtype: "auto"
"""
CONFIG_BENCHMARK = """
model: org/m
compilation-config: '{"pass_config":{"fuse_allreduce_rms":true,"eliminate_noops":true}}'
kv-cache-dtype: fp8
async-scheduling: true
no-enable-prefix-caching: true
max-cudagraph-capture-size: 2048
max-num-batched-tokens: 8192
max-model-len: 10240
"""
CONFIG = "model: org/m\nhost: 127.0.0.1\ntensor-parallel-size: 2\nmax-model-len: 8k\nenable-prefix-caching: false\n"

FILES: dict[str, tuple[str, list[dict[str, Any]], str | None, str]] = {
    # text, fields of each server, GPU, words of the notes
    "KServe InferenceService": (KSERVE, [{"max_model_len": "8192", "replicas": 2}], None, "to 4 replicas (2"),
    "KServe with a runtime": (KSERVE_RUNTIME, [{"tensor_parallel_size": "2"}], "l40s-48gb", ""),
    "LLMInferenceService": (LLM_SERVICE, [{"engine": "vllm@0.11", "replicas": 3}], None, ""),
    "LLMInferenceService with prefill": (
        LLM_SERVICE_PD,
        [
            {"tensor_parallel_size": "2", "role": "decode", "kv_transfer_config": "..."},
            {"tensor_parallel_size": "2", "role": "prefill", "kv_transfer_config": "...", "replicas": 2},
        ],
        None,
        "",
    ),
    "production stack": (
        STACK,
        [{"engine": "vllm@0.10.2", "tensor_parallel_size": "2", "max_model_len": "4096", "dtype": "bfloat16",
          "gpu_memory_utilization": "0.8", "enable_chunked_prefill": False, "enable_prefix_caching": False,
          "replicas": 2}],
        None,
        "",
    ),
    "production stack, minimal": (STACK_MINIMAL, [{}], None, ""),
    "production stack with LMCache": (
        STACK_LMCACHE,
        [{"enable_prefix_caching": True, "max_model_len": "16384"}],
        None,
        "lmcacheConfig of servingEngineSpec/modelSpec/0 (not read) cacheserverSpec (not read)",
    ),
    "llm-d values": (
        LLM_D,
        [
            {"tensor_parallel_size": "2", "enforce_eager": True, "kv_transfer_config": "...", "role": "decode"},
            {"enforce_eager": True, "kv_transfer_config": "...", "role": "prefill", "replicas": 2},
        ],
        None,
        "",
    ),
    "llm-d values, aggregated": (
        LLM_D_AGGREGATED,
        [{"tensor_parallel_size": "2", "enforce_eager": True, "kv_transfer_config": "..."}],
        None,
        "",
    ),
    "llm-d ModelService": (MODEL_SERVICE, [{"max_num_seqs": "64", "replicas": 2}], None, ""),
    "Dynamo, disaggregated": (
        DYNAMO,
        [
            {"engine": "sglang", "block_size": 16, "role": "decode"},
            {"engine": "sglang", "block_size": 16, "role": "prefill", "replicas": 3},
        ],
        None,
        "",
    ),
    "Dynamo, vLLM": (DYNAMO_VLLM, [{"tensor_parallel_size": "2", "replicas": 2}], None, ""),
    "Dynamo v1beta1": (DYNAMO_BETA, [{"engine": "sglang"}], None, ""),
    "Ray Serve": (
        RAY,
        [{"max_model_len": "8192", "tensor_parallel_size": "2"}],
        "l4",
        "1 to 2 replicas (1 assumed)",
    ),
    "Ray Serve with a bucket": (
        RAY_BUCKET,
        [{"max_model_len": "8192", "replicas": 3}],
        "a100-sxm-80gb",
        "lora_config of applications/0/args/llm_configs/0 (not read)",
    ),
    "RayService": (RAY_SERVICE, [{"max_model_len": "4096", "gpu_memory_utilization": "0.88"}], None, ""),
    "options of vllm serve": (
        CONFIG,
        [{"tensor_parallel_size": "2", "max_model_len": "8k", "enable_prefix_caching": False}],
        None,
        "",
    ),
    "llm-d ModelService, large model": (
        MODEL_SERVICE_LARGE,
        [
            {"tensor_parallel_size": "8", "max_model_len": "1000000", "role": role,
             "override_generation_config": '{"attn_temperature_tuning": true}'}
            for role in ("decode", "prefill")
        ],
        None,
        "acceleratorTypes (not a known GPU; select one with --gpu) baseConfigMapRef of spec (not read)",
    ),
    "llm-d ModelService with replicas": (
        MODEL_SERVICE_REPLICAS,
        [{"replicas": 2, "role": "decode"}, {"role": "prefill"}],
        "a100-sxm-80gb",
        "spec/modelArtifacts/uri (the model is assumed to be org/m) baseConfigMapRef of spec (not read)",
    ),
    "llm-d ModelService with templates": (
        MODEL_SERVICE_TEMPLATED,
        [{"role": "decode"}, {"role": "prefill"}],
        "a100-sxm-80gb",
        "baseConfigMapRef of spec (not read)",
    ),
    "SkyPilot with an image": (
        SKYPILOT_IMAGE, [{}], None, "L4 or A10G or A10 or A100 or A100-80GB (select one with --gpu)"
    ),
    "SkyPilot service": (
        SKYPILOT_SERVICE,
        [{"tensor_parallel_size": "8", "max_model_len": "430000", "replicas": 2}],
        None,
        "H100 or H200 or B100 or B200 or GB200 (select one with --gpu)",
    ),
    "SkyPilot with several numbers of GPUs": (
        SKYPILOT_MIXED_COUNTS,
        [{"tensor_parallel_size": "8", "replicas": 2}],
        None,
        "8 or 4 or 2 GPUs (8 assumed) L4 or A10g or A100 or A100-80GB (select one with --gpu)",
    ),
    "options of vllm serve, pipeline": (
        CONFIG_PIPELINE,
        [{"pipeline_parallel_size": "2", "dtype": "auto", "gpu_memory_utilization": "0.9",
          "enable_prefix_caching": True}],
        None,
        "",
    ),
    "options of vllm serve with underscores": (
        CONFIG_UNDERSCORES, [{"dtype": "auto", "gpu_memory_utilization": "0.9"}], None, ""
    ),
    "options of vllm serve in a benchmark": (
        CONFIG_BENCHMARK,
        [{"kv_cache_dtype": "fp8", "max_model_len": "10240", "max_num_batched_tokens": "8192",
          "max_cudagraph_capture_size": "2048", "enable_prefix_caching": False, "async_scheduling": True}],
        None,
        "--compilation-config",
    ),
}  # fmt: skip
