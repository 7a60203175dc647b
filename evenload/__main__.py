"""The `evenload` command, also as `python -m evenload`; a plain install, which is a producer, has none.

What the command line is made of comes with the extras that have something to command. An application that
installs evenload to produce gets no package that it has no use for.
"""

from __future__ import annotations

import sys

from evenload.extras import EXTRAS_BY_PACKAGE, missing_extra


def main() -> None:
    """Run the command, or say what to install for it.

    Raises:
        SystemExit: with the command's exit status.
    """
    try:
        from evenload.cli import main as run
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            extras = ", ".join(f"[{extra}]" for extra in EXTRAS_BY_PACKAGE["click"])
            sys.exit(f"evenload: {missing}; a plain install is a producer, the command comes with {extras}")
        raise
    except KeyboardInterrupt:  # loading takes a second; there is no command yet that could say more
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
