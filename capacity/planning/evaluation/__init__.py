"""Evaluate a candidate: simulate it on the traffic and compare the result with the SLO."""
