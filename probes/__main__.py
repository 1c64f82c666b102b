"""`python -m probes`: the same command as `fastslow`."""

import os
import sys


def _working_folder_last() -> None:
    """`python -m` puts the working folder first on the import path; there, a `figures/` of the user's own would hide
    ours. It stays importable, behind what is installed, unless it is where these packages lie."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path and os.path.realpath(sys.path[0] or os.curdir) != os.path.realpath(here):
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    if not sys.flags.safe_path:
        _working_folder_last()
    from probes.cli import main

    main()
