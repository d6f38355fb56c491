"""Operation of the service: metrics, retention, views for operators."""
