"""Experiments: a matrix of matched jobs, and what can honestly be said about its arms. Pure: no database, no clock."""
