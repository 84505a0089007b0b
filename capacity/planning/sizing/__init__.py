"""Replicas needed for a load, on one GPU type or on all of them."""
