"""Revisions, oldest first by their numbers."""
