"""Cost of owned GPUs per GPU-hour: straight-line depreciation, power, hosting and staff.

The hardware loses the same value in each hour of its life, busy or idle, and draws full power in each of them. A year
has 8,760 hours. Left out: interest, taxes, repairs, and hours in which the server is out of service.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from capacity.base.errors import InvalidInput
from capacity.base.money import usd_text
from capacity.base.spec import Spec
from capacity.deployment.building import build
from capacity.hardware import load_profile
from capacity.hardware.server_power import server_power

HOURS_PER_YEAR = 8760
Amount = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]


class OwnedCost(Spec):
    """Costs of a server with `gpus` GPUs, from the text of `--owned-cost`.

    `purchase`: $ for the server. `residual`: share of this price that remains after `years`. `kwh`: price of power in $
    per kWh; None leaves power out. `watts`: power of the server without cooling; default: the TDP of its GPUs with
    host, fans and power supplies. `pue`: default from `server_power.toml`. `hosting`: $ per server and month. `staff`:
    share added to the sum of the other parts. `gpu`: the GPU that the costs apply to; None: any.
    """

    gpu: str | None = None
    purchase: Amount
    years: Annotated[float, Field(gt=0, le=50)]
    residual: Share = 0.0
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    kwh: Amount | None = None
    watts: Annotated[float, Field(gt=0, le=1e6)] | None = None
    pue: Annotated[float, Field(ge=1, le=5)] | None = None
    hosting: Amount = 0.0
    staff: Share = 0.0

    def parts(self, gpu: str) -> Mapping[str, float]:
        """Return the $ per hour of one GPU of profile `gpu` by kind of cost; kinds that were not given are left out."""
        parts = {
            "depreciation": self.purchase * (1 - self.residual) / (self.years * HOURS_PER_YEAR * self.gpus),
            "power": 0.0 if self.kwh is None else self._kilowatts(gpu) / self.gpus * self.kwh,
            "hosting": self.hosting * 12 / HOURS_PER_YEAR / self.gpus,
        }
        parts["staff"] = self.staff * sum(parts.values())
        return {name: usd for name, usd in parts.items() if usd or name == "depreciation"}

    def _kilowatts(self, gpu: str) -> float:
        """Return the power of the server with cooling."""
        factors = server_power()
        pue = factors.pue.value if self.pue is None else self.pue
        if self.watts is not None:
            return self.watts * pue / 1000
        tdp = load_profile(gpu).tdp_watts * self.gpus
        return factors.facility_watts(tdp, tdp) / factors.pue.value * pue / 1000

    def description(self, gpu: str) -> str:
        """Return each kind of cost with the numbers from which it is computed, in one line."""
        kept = f" less {self.residual:.0%}" if self.residual else ""
        notes = {
            "depreciation": f" ({usd_text(self.purchase, ',.0f')}{kept} over {self.years:g} years, {self.gpus} GPUs)"
        }
        if self.kwh:
            notes["power"] = (
                f" ({self._kilowatts(gpu):,.2f} kW with cooling at {usd_text(self.kwh, 'g')} per kWh)"
            )
        texts = [
            f"{usd_text(usd, ',.3f')} {name}{notes.get(name, '')}" for name, usd in self.parts(gpu).items()
        ]
        return f"owned: {' + '.join(texts)}"


def parse_owned_cost(text: str, gpu: str) -> OwnedCost:
    """Parse `--owned-cost` and return the costs of `gpu`, a profile's name.

    The text is "purchase=250000,gpus=8,years=5,kwh=0.12"; costs of several GPUs are separated by ";", each with `gpu=`.
    Raises InvalidInput if a part is malformed or no part is for `gpu`, and UnknownName for an unknown GPU.
    """
    owned = [_parse_server(each) for each in text.split(";")]
    named = [None if each.gpu is None else load_profile(each.gpu).name for each in owned]
    found = [each for each, name in zip(owned, named, strict=True) if name in (gpu, None)]
    if len(found) != 1:
        raise InvalidInput(
            f"--owned-cost {text!r} has {len(found)} costs of {gpu}, must have one: add gpu={gpu}"
        )
    return found[0]


def _parse_server(text: str) -> OwnedCost:
    fields: dict[str, object] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name in fields:
            what = "is given twice" if equals else "has no value"
            raise InvalidInput(
                f"--owned-cost: {name!r} {what}; write purchase=250000,gpus=8,years=5,residual=0.1,kwh=0.12"
            )
        fields[name] = value
    try:
        owned = build(OwnedCost, fields)
    except InvalidInput as error:
        raise InvalidInput(f"--owned-cost: {error}") from None
    if owned.kwh is None and (owned.watts is not None or owned.pue is not None):
        raise InvalidInput(
            "--owned-cost: watts and pue have no effect without kwh, the price of power: add kwh=0.12"
        )
    return owned
