"""What a user writes: which GPUs and how (`Pool`), what is asked (`Traffic`), how it is served, at what price.

In: flags, keywords, a TOML file, or a pasted vLLM command. Out: frozen, validated specs, declared once: their fields
are the flags of the command line and the keywords of the Python API. `engines` has what inference engines do by
default, as data; `routers` are what `--router` names. Nothing else here computes. Start reading at `specs`.
"""

from capacity.deployment.specs import (
    MAX_FILE_BYTES,
    Billing,
    Cost,
    DeploymentFile,
    Pool,
    Service,
    Traffic,
    build,
    check_deployment,
    explain,
    read_deployment,
    read_deployment_fields,
    to_toml,
    write_deployment,
)

__all__ = [
    "MAX_FILE_BYTES",
    "Billing",
    "Cost",
    "DeploymentFile",
    "Pool",
    "Service",
    "Traffic",
    "build",
    "check_deployment",
    "explain",
    "read_deployment",
    "read_deployment_fields",
    "to_toml",
    "write_deployment",
]
