"""Launches of a compiled graph on the ``cuda`` target."""
