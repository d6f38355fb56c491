"""What operators see and set: metrics, retention, the state of the system."""
