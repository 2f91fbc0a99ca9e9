"""Slow links on one machine: a network namespace for every worker, joined by a bridge and shaped.

`Shape` says how fast they are, `network` makes them, `prepare` finds out first whether this user on
this machine can have them.
"""
