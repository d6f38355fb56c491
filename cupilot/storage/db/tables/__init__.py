"""The tables, a module for each kind of record."""
