"""What every layer needs and none is about: files, progress, registry, tensors."""
