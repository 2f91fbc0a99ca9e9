"""The commands of `gradwire`, one file each; `app.py` puts them together."""
