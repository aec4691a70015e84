"""The program ``shardstore``, and ``python -m shardstore``."""

from __future__ import annotations

import sys

from shardstore.extras import how_to_install


def main() -> None:
    """Run the command line of this process."""
    try:
        from shardstore.apps.cli.app import main as run
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the command line needs typer and rich: {how_to_install('cli')}")
    except KeyboardInterrupt:  # while it was being imported; the commands see to the rest
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
