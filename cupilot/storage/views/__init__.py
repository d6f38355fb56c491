"""Read models: rows as the REST boundary shows them (:mod:`cupilot.schemas`). They change nothing.

Every function takes the asking team and finds nothing of another.
"""
