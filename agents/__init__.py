"""The four agents of cuPilot. They know problems, strategies and kernels; no database, no queue, no device."""
