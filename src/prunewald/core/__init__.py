"""The pure core, tensors in and tensors out: criteria, allocations, patterns, schedules, and the order of weights."""
