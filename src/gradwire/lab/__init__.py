"""The training lab behind `gradwire train`: the same training, once per codec, side by side."""
