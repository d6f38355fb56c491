"""Tools for coding agents over the Model Context Protocol: a client of the service's REST interface, and nothing else.

The same tools stand at ``/mcp`` of the service and behind ``cupilot mcp``; rights, quotas and verdicts are REST's.
"""
