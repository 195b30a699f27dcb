"""The command line as `python -m simulator`, where the command `servetwin` is not on the path."""

from simulator.cli import main

if __name__ == "__main__":
    main()
