"""``python -m tersor check``: measures codecs and links of this machine."""

from __future__ import annotations

import sys

from tersor import check

_USAGE = "usage: python -m tersor check [options]    (python -m tersor check --help)"


def main(arguments: list[str]) -> int:
    """Runs a command and returns the exit status."""
    if arguments[:1] == ["check"]:
        return check.main(arguments[1:])
    print(_USAGE, file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
    return 0 if arguments[:1] in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
