"""Fleets: several pools behind a router by request length."""
