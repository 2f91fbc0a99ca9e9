"""Where gradwire meets PyTorch: DDP, FSDP2, and calls without either."""
