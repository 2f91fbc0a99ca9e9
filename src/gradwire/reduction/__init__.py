"""One bucket of gradients to its mean, and what is kept from step to step."""
