"""The paper's experiments on the public API: data, models, training, comparison, demo."""
