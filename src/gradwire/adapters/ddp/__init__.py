"""The adapter to DistributedDataParallel."""
