"""KV caches: paged blocks with prefix reuse, and the baselines that they are compared with."""
