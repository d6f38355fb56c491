"""Batches: steps exported to a machine without a network. Values, and the two file formats; reads and writes bytes."""
