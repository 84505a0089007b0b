"""What a user writes: which GPUs and how (`Pool`), what is asked (`Traffic`), how it is served, at what price.

In: flags, keywords, a TOML file, or a pasted vLLM command. Out: frozen, validated specs, declared once: their fields
are the flags of the command line and the keywords of the Python API. `engines` has what inference engines do by
default, as data; `routers` are what `--router` names. Nothing else here computes. Start reading at `pool`.
"""

from capacity.deployment.building import build, explain
from capacity.deployment.cascade_fields import Cascade
from capacity.deployment.cost import Billing, Cost
from capacity.deployment.deployment import ESTIMATE_TRAFFIC, Deployment, deployment_of
from capacity.deployment.file import DeploymentFile, read_deployment, to_toml, write_deployment
from capacity.deployment.pool import Pool
from capacity.deployment.service import Service
from capacity.deployment.traffic import Traffic
