"""What a machine is tested by."""
