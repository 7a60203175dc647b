"""Refuses to build where links have become files; all else about building is in pyproject.toml.

Most packages lie beside evenload/, which links to them. Whatever unpacks no links (pip and uv a zip archive,
git on Windows unless told to) leaves files instead, and setuptools would build a wheel without these
packages, and say nothing.
"""

import sys
from pathlib import Path

from setuptools import setup

files = sorted(path.name for path in Path("evenload").iterdir() if path.is_file() and not path.suffix)
if files:
    sys.exit(
        f"evenload/ has files called {', '.join(files)}, which should be links to folders: install from a "
        "clone of the repository or a tar archive of it, not from a zip archive; on Windows, clone it with "
        "`git clone -c core.symlinks=true`"
    )
setup()
