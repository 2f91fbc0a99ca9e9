"""gradwire in the frameworks people train with. Each module here needs the package it is named for.

`tensorboard` needs none: it writes to whatever has an `add_scalar`.
"""
