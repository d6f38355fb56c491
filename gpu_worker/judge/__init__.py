"""The judge process: runs the reference, knows the expected outputs, holds the clock and gives the verdict."""
