"""Capacity planning for LLM inference."""
