"""Parameter sweeps of a command: points, their store and their export."""
