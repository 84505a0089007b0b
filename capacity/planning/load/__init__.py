"""Behaviour under rising load: latency curve, highest rate within the SLO, replicas by the hour."""
