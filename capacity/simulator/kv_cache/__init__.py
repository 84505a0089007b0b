"""KV cache pools: paged blocks with prefix caching, and simpler pools for comparison."""
