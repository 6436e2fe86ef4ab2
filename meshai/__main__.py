"""`python -m meshai` is the same as `meshai`."""

from meshai.cli import main

if __name__ == "__main__":
    main(prog_name="meshai")
