"""How long a step will take, with which codec, and whether that pays."""
