"""In the trainer you have: one module a framework, each imported only when it is used.

`from prunewald.integrations.lightning import PrunerCallback`; the others are `transformers`, `accelerate`, `peft`,
`nn_prune` (torch's own) and `torch_pruning`.
"""
