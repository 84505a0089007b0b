"""Facts of a GPU: datasheet, fitted coefficients, spreads of served runs about predictions, rental prices.

In: one TOML a GPU (`hardware_profiles/`, or the user's own), in which every value has source, date and basis; tables
of prices and spreads beside the modules. Out: `HardwareProfile` with its `StepCoefficients`; `Price`; error bands.
Nothing here knows a model or an engine's schedule. Start reading at `profile`, then `coefficients`.
"""

from capacity.hardware.profile import (
    HardwareProfile,
    Link,
    Provenance,
    dump_profile,
    parse_profile,
    write_profile,
)
from capacity.hardware.profile_search import (
    PROFILES_VARIABLE,
    bundled_directory,
    profile_names,
    profile_paths,
    user_profiles_directory,
)
from capacity.hardware.what_if import load_profile
