"""Facts on the energy that a deployment draws: its GPUs alone, and the whole facility with servers and cooling."""

from capacity.answers.drawn_energy import DrawnEnergy
from capacity.report.display import phrase
from capacity.report.views.units import Unit
from capacity.report.views.view import Fact, known_facts

JOULES = Unit(2, after=" J/output token")
GRAMS = Unit(0, after=" g/1M output tokens")
KILOWATTS = Unit(2, 1e-3, " kW")


def drawn_facts(drawn: DrawnEnergy | None) -> list[Fact]:
    """Return the energy per output token of the GPUs alone and of the whole facility; empty if unknown."""
    if drawn is None:
        return []
    carbon = drawn.co2_g_per_million_output_tokens
    grid = phrase("{:,.4g} g CO2 per kWh, whole facility", drawn.co2_g_per_kwh)
    basis = "" if drawn.basis == "fitted" else "; assumed from other GPUs"
    gpus, facility = KILOWATTS.texts(drawn.gpu_watts.value)[0], KILOWATTS.texts(drawn.facility_watts.value)[0]
    building = f"{facility} with hosts, fans, power supplies and PUE {drawn.pue:g}"
    return [
        Fact("drawn energy", drawn.joules_per_output_token, JOULES, f"GPUs only, {gpus}{basis}"),
        Fact("  whole facility", drawn.facility_joules_per_output_token, JOULES, building),
        *known_facts([Fact("  carbon", carbon, GRAMS, grid)]),
    ]
