"""Compiled engines: C code that is much faster than the Python engines and gives bit-identical results."""
