"""`auto` at work in a DDP module: what it measures, and when it does what."""
