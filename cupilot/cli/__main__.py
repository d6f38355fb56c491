"""``python -m cupilot.cli``: the same as ``cupilot``."""

from cupilot.cli import main

if __name__ == "__main__":
    main()
