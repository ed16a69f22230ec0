"""The errors that reach a user, each as one line."""

import os


class FrAnalysisError(Exception):
    """Analysis cannot begin or cannot be trusted; the message says what to do.

    The command prints it as one line and exits with the status for bad input.
    """


class UnreadableDump(FrAnalysisError):
    """One file is no usable dump; the message is the reason, without the file's name.

    It becomes an entry of ``Diagnosis.unread``: the other files are still analyzed.
    """


class NotADump(UnreadableDump):
    """The file is of another kind altogether: a log, or some other JSON."""


def printable(path: str | os.PathLike[str]) -> str:
    """A path for a message: a name may hold bytes or controls that no terminal takes."""
    text = os.fspath(path)
    return "".join(char if char.isprintable() else "?" for char in text)
