"""`python -m sparing` is `sparing`."""


def run() -> int:
    """The command line, imported inside: an early Ctrl-C finds no traceback to print."""
    try:
        from sparing.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
