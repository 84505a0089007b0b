"""KV caches: paged blocks with prefix reuse, and the baselines to compare them with."""
