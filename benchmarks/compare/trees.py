"""The product as it stands here, and as it was at another commit: a directory in which processes import it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[2]
_PRODUCT = ("dualwrite", "migrations")
_MEASURING = ("benchmarks", "tests")


@dataclass(frozen=True)
class ProductTree:
    """One version of the product.

    :param title: what it is called in the tables.
    :param home: the directory of its packages.
    """

    title: str
    home: Path


HERE = ProductTree("here", HOME)


def tree_of(commit: str, directory: Path) -> ProductTree:
    """The product of ``commit`` in ``directory``, beside the benchmarks of today: both are measured alike.

    :raises SystemExit: if there is no such commit.
    """
    known = _git("rev-parse", "--verify", "--quiet", "--short", f"{commit}^{{commit}}")
    if known.returncode:
        raise SystemExit(f"{commit}: there is no such commit in {HOME}")
    files = _git("archive", commit, *_PRODUCT)
    if files.returncode:
        raise SystemExit(f"{commit}: {files.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=files.stdout, check=True)
    for name in _MEASURING:
        (directory / name).symlink_to(HOME / name)
    return ProductTree(known.stdout.decode().strip(), directory)


def is_same_product(commit: str) -> bool:
    """True if nothing of the product has changed since ``commit``."""
    return _git("diff", "--quiet", commit, "--", *_PRODUCT).returncode == 0


def _git(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *words], cwd=HOME, capture_output=True, check=False)
