"""A process group and everything that is sent over it."""
