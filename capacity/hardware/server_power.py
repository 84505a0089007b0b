"""Power of a server and its building in addition to its GPUs: host, fans, power supplies and cooling.

The factors are in `server_power.toml`, each with its source. They are reported separately from the power of the GPUs,
because none of them was measured on the servers of the profiles.
"""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capacity.base.data_files import make_row, read_data
from capacity.base.spec import Spec
from capacity.hardware.profile import Provenance

TABLE = Path(__file__).with_name("server_power.toml")


class PowerFactor(Provenance):
    """One of the factors of `ServerPower`, with its source."""

    value: Annotated[float, Field(gt=0, le=5)]


class ServerPower(Spec):
    """Factors from the power of GPUs to the power of their server and building (`server_power.toml`)."""

    host_share: PowerFactor
    fan_share: PowerFactor
    power_supply_efficiency: PowerFactor
    pue: PowerFactor

    def facility_watts(self, gpu_watts: float, tdp_watts: float) -> float:
        """Return the watts of GPUs with host and cooling; `gpu_watts` and `tdp_watts` are totals of all GPUs."""
        server = (gpu_watts + self.host_share.value * tdp_watts) * (1 + self.fan_share.value)
        return server / self.power_supply_efficiency.value * self.pue.value


@cache
def server_power() -> ServerPower:
    """Return the factors in `server_power.toml`. Raises MalformedFile."""
    return make_row(TABLE, "", ServerPower, read_data(TABLE))
