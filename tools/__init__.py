"""Small programs for those who develop prunewald."""
