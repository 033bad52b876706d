"""Small tools that every layer uses: number checks, files, tables, warnings, progress, nested tensors, the registry."""
