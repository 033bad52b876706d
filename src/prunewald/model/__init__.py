"""What is pruned: the parameters of a model, the pieces of them that are meant, and what optimizers keep of them."""
