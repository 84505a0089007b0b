"""Evaluate a candidate: simulate it on the traffic and judge it against the SLO."""
