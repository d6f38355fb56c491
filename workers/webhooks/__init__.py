"""The role that delivers webhooks: ``python -m workers webhooks``. Any number may run; each message is claimed by one.

A role of its own, since it is the only one that talks to addresses which users name (docs/decisions/0008).
"""
