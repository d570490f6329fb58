"""``python -m ucn`` is the command ``ucn``."""

from ucn.cli import main

if __name__ == "__main__":
    main()
