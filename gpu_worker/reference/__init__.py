"""The reference process: runs the user's PyTorch reference and answers the judge. Decides nothing."""
