"""Parameter sweeps of a command: points of the sweep, store of their results, and export."""
