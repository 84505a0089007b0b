"""Compiled engines: C code with bit-identical results to the Python engines, but fast."""
