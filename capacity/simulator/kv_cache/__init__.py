"""KV cache pools: paged blocks with prefix reuse, and simpler pools as baselines for comparison."""
