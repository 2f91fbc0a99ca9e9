"""The adapter to FSDP2, that is to modules that `fully_shard` was called on."""
