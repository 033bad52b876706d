"""The statistics of pruning: Wald tests, false discoveries, agreement, guarantees, paired comparisons."""
