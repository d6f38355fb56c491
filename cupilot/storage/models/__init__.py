"""Calls of language models: records, rate limits, money."""
