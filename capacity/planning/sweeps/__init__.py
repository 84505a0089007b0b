"""Grids over a verb: points, their store and their export."""
