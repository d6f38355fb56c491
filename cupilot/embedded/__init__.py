"""The embedded stack: the real servers and roles as child processes under one data folder.

Nothing here is used in production, where the same roles run from images; only URLs differ. Call it through
:mod:`cupilot.embedded.stack`; that module needs the extra ``embedded`` and a checkout, the doctor needs neither.
"""
