"""Files at URLs, from storage that fails: nothing is lost, and an error names the URL."""

import errno

import pytest

from hotrows.runtime.remote import fetched, sent
from hotrows.runtime.remote.copies import named
from hotrows.runtime.remote.files import RemoteFiles, open_files
from tests.machines.storage import make_faulty


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_nothing_is_lost_by_a_thousand_faults(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket"
    faulty, files, rounds = make_faulty(url, monkeypatch, 0.5), open_files(url), 200
    (tmp_path / "content").write_bytes(bytes(1000))
    for number in range(rounds):
        (tmp_path / "content").write_bytes(content := bytes([number % 251]) * (number + 1))
        files.put(f"{number}/a", tmp_path / "content")
        files.write(f"{number}/b", content)
        files.get(f"{number}/a", tmp_path / "back", len(content))
        assert (tmp_path / "back").read_bytes() == files.read(f"{number}/b") == content
        files.remove(f"{number}/a")
        assert files.read(f"{number}/a") is None
    assert files.names() == {f"{number}/b" for number in range(rounds)}
    assert sum(faulty.faults.values()) > 1000 and len(faulty.faults) == 4, faulty.faults


@pytest.mark.parametrize(
    ("error", "kind", "tries"),
    [
        (OSError(errno.EBUSY, "Service Unavailable"), OSError, 3),
        (TimeoutError("late"), OSError, 3),
        (FileNotFoundError("bucket/a"), FileNotFoundError, 1),
        (PermissionError("Access Denied"), PermissionError, 1),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), OSError, 1),
        (ValueError("Invalid bucket name"), ValueError, 1),
    ],
)
def test_an_error_names_the_url_and_only_what_may_pass_is_repeated(
    tmp_path, monkeypatch, error, kind, tries
):
    files, calls = RemoteFiles(f"file://{tmp_path}/bucket", patience=0.4), []

    def fails(*_, **__):
        calls.append(1)
        raise error

    monkeypatch.setattr(files._system, "pipe_file", fails)
    with pytest.raises(kind, match=rf"file://\S+/bucket cannot be reached: .*{error.args[-1]}"):
        files.write("a", b"1")
    assert (len(calls) >= tries) if tries > 1 else len(calls) == 1


@pytest.mark.parametrize("call", ["put_file", "pipe_file"])
def test_a_writer_that_is_killed_leaves_the_file_as_it_was(tmp_path, monkeypatch, call):
    """A run at file:// was lost by a kill in the moment in which its settings were sent once more."""
    files, content = RemoteFiles(f"file://{tmp_path}/bucket"), tmp_path / "content"
    content.write_bytes(b"before"), files.put("a", content)

    def killed(*arguments):
        path = next(path for path in arguments if isinstance(path, str) and "bucket" in path)
        open(path, "wb").close()
        raise SystemExit

    monkeypatch.setattr(files._system, call, killed)
    with pytest.raises(SystemExit):
        files.put("a", content) if call == "put_file" else files.write("a", b"after")
    assert files.read("a") == b"before" and files.names() == {"a"}


def test_who_stops_waits_for_no_other_try(tmp_path, monkeypatch):
    files = RemoteFiles(f"file://{tmp_path}/bucket", patience=1000)
    files.stopped.set()
    monkeypatch.setattr(files._system, "pipe_file", lambda *_: 1 / 0)
    with pytest.raises(OSError, match="division by zero"):
        files.write("a", b"1")


def test_a_copy_has_what_the_url_has_now(tmp_path, monkeypatch):
    (bucket := tmp_path / "bucket/enc").mkdir(parents=True)
    (bucket / "a").write_text("1"), (bucket / "b").write_text("2")
    url = f"file://{bucket}"
    copy = fetched(url)
    assert named(copy) == url and {path.name: path.read_text() for path in copy.iterdir()} == {
        "a": "1",
        "b": "2",
    }
    faulty = make_faulty(url, monkeypatch)
    (bucket / "a").write_text("10"), (bucket / "b").unlink(), (bucket / "c").write_text("3")
    assert fetched(url) == copy
    assert {path.name: path.read_text() for path in copy.iterdir()} == {"a": "10", "c": "3"}
    assert len(faulty.got) == 2
    fetched(url)
    assert len(faulty.got) == 2, "what has not changed is not read again"
    (tmp_path / "bucket/one.json").write_text("{}")
    assert fetched(f"{tmp_path.as_uri()}/bucket/one.json").read_text() == "{}"


def test_what_is_sent_is_complete_or_not_there(tmp_path):
    url = f"file://{tmp_path}/bucket/enc"
    with pytest.raises(ZeroDivisionError), sent(url) as path:
        1 / 0  # noqa: B018
    with sent(url) as path:
        path.mkdir()
        (path / "data.json").write_text("{}"), (path / "x").write_text("x")
    assert {file.name for file in (tmp_path / "bucket/enc").iterdir()} == {"data.json", "x"}
    assert not path.parent.exists()
    with pytest.raises(ValueError, match="enc exists already"), sent(url):
        pass
