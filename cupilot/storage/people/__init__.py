"""Teams, users, keys, quotas and the audit log."""
