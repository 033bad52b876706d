"""What is left after a pruning, fitted by least squares to what the dense layer gave: no gradient step."""
