"""gradwire in the frameworks people train with. A module here needs the package of its name."""
