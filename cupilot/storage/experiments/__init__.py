"""Experiments in the database."""
