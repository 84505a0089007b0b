"""Number of replicas that a load needs, on one GPU type or on each of them."""
