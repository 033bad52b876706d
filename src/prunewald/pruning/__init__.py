"""One pruning, from the request to weights that stay at zero."""
