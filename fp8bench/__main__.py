"""`python -m fp8bench`: the same program as the `fp8bench` command."""

from fp8bench.cli.app import main

if __name__ == "__main__":
    main()
