"""Steps, their dispatch to workers, and the cards of the cluster."""
