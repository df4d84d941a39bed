"""The error of the command line: what is wrong and what to do, without a traceback."""


class CommandError(Exception):
    """Printed as `error: <message>`; the process ends with exit code 2."""
