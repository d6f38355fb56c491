"""Loop nests of a compiled graph on the ``cpu`` target."""
