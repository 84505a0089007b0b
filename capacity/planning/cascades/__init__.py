"""Model cascades: a semantic cache or a small model in front of a large one."""
