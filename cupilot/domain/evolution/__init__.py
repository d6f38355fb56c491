"""Evolution methods as pure, seeded functions: no I/O, no clock, no global random state."""
