"""Get a Chromium for pictures where this machine lets us: `python -m cluster.commands.browser --install`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from landscape.views.exporting import find_browser

REMEDY = "PNG and SVG pictures need a Chromium: apt install chromium (as root), or set BROWSER_PATH to one"


def install_browser() -> bool:
    """Install Debian's Chromium where there is none and we may; says on stderr what it does."""
    if find_browser():
        return True
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(REMEDY, file=sys.stderr)
        return False
    print("installing Debian's chromium, for PNG and SVG pictures", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "install", "-y", "chromium"]):
        if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
            print(REMEDY, file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    if "--install" in sys.argv[1:]:
        install_browser()
    print(find_browser() or REMEDY)
