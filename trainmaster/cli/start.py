"""The program ``trainmaster``: it loads the command line, quietly if Ctrl-C ends it meanwhile. Imports nothing slow by itself."""

import signal


def main() -> None:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # There is nothing to clean up yet, and Python's own handler would write a stack trace of the imports. Commands set it again.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trainmaster.cli.main import main as run

    run()
