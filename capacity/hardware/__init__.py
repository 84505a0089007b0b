"""GPU data: datasheet values, fitted coefficients, standard deviations of prediction errors, and rental prices.

Input: one TOML file per GPU (`hardware_profiles/` or the user's own) in which every value has a source, a date and a
basis, plus the tables of prices and prediction errors next to the modules. Output: `HardwareProfile` with its
`StepCoefficients`, `Price`, and `Spreads` of prediction errors. This package does not depend on models or engine
schedulers. Start with `profile`, then `coefficients`.
"""

from capacity.hardware.profile import (
    HardwareProfile,
    Link,
    Provenance,
    dump_profile,
    parse_profile,
    require_new_profile,
    write_profile,
)
from capacity.hardware.profile_search import (
    PROFILES_VARIABLE,
    bundled_directory,
    has_profile,
    profile_names,
    profile_paths,
    use_text,
    user_profiles_directory,
)
from capacity.hardware.what_if import load_profile
