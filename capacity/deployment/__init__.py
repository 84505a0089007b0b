"""User input: GPUs and engine settings (`Pool`), requests (`Traffic`), routing (`Service`) and prices (`Cost`).

Input: flags, keywords, a TOML file, or a pasted vLLM command. Output: immutable, validated specs. Each field is
declared once and is both a command-line flag and a keyword of the Python API. `engines` has the defaults of inference
engines, as data; `routers` has the values of `--router`. This package only reads and checks input. Start with `pool`.
"""

from capacity.deployment.building import build, explain
from capacity.deployment.cascade_fields import Cascade
from capacity.deployment.cost import Billing, Cost
from capacity.deployment.deployment import ESTIMATE_TRAFFIC, Deployment, make_deployment
from capacity.deployment.file import DeploymentFile, read_deployment, to_toml, write_deployment
from capacity.deployment.pool import Pool
from capacity.deployment.service import Service
from capacity.deployment.traffic import Traffic
