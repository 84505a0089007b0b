"""Fleets: several pools of replicas behind a router that splits requests by length."""
