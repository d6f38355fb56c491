"""The endpoints, one module a noun. They fetch what they need and hand it on; they decide nothing."""
