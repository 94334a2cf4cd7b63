"""What ``python -m tests.distribution.image`` reads from the Containerfile; it runs nothing here."""

from tests.distribution.image import NAME, documented


def test_the_comments_have_the_commands_that_build_and_run_the_image() -> None:
    build, volume, users, run = documented({"./conf": "/conf"})
    assert (build[0], volume) == ("build", ["volume", "create", NAME])
    assert users[-5:] == ["users", "set", "admin", "--data-dir", "/var/lib/dualwrite"]
    assert {"--read-only", NAME, "/conf:/etc/dualwrite:ro"} <= set(run)
    assert all(f"{NAME}:/var/lib/dualwrite" in command for command in (users, run))
