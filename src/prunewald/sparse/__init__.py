"""Running sparse: measuring ways to run a layer beside the dense one, on the inputs that an example gives it."""
