"""Outer steps: workers train apart for a while, then exchange how far their weights have moved."""
