"""`python -m sparing` is `sparing`."""

from sparing.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
