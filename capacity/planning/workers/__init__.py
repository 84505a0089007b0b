"""Processes and clusters that evaluate candidates."""
