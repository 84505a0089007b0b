"""How many replicas a load needs, on one GPU or on all of them."""
