"""How bits lie in memory, for all backends."""
