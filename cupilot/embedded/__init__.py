"""The embedded stack: the real servers and roles as child processes under one data folder.

Nothing here is used in production, where the same roles run from images; only URLs differ.
"""

from cupilot.embedded.lifecycle import down, running, status, up
from cupilot.embedded.report import Endpoint, PartState, PartStatus, Progress, Status

__all__ = ["Endpoint", "PartState", "PartStatus", "Progress", "Status", "down", "running", "status", "up"]
