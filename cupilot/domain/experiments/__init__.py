"""Experiments: a matrix of matched jobs, and the statistics that compare its arms. Pure: no database, no clock."""
