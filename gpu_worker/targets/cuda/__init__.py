"""The ``cuda`` target: NVRTC builds, SASS facts, a runner over the driver API, and the device's own measurements.

Nothing is imported here: the judge, the runner and the compiler are different processes and load only their own module.
"""
