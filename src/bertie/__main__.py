"""`python -m bertie` is the command `bertie`."""

from bertie.cli import main

if __name__ == "__main__":
    main()
