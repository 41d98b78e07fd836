"""`make bench` tells by which state of the code a cell was measured, where git is."""

import subprocess

import bench


def test_a_state_of_the_code_is_that_of_its_commit_whatever_pages_say(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert bench.commit() == ""
    files = [tmp_path / name for name in ("code.py", "docs/benchmark.json", "README.md")]
    (tmp_path / "docs").mkdir()
    for file in files:
        file.write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "state")
    state = bench.commit()
    for file in files[1:]:
        file.write_text("2")
    assert bench.commit() == state != ""
    files[0].write_text("2")
    assert bench.commit() == f"{state}-dirty"
