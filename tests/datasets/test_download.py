"""Downloads, from a server on this machine: resumed, verified, and explained where they fail."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from threading import Thread
from typing import ClassVar

import pytest

from hotrows.data.datasets import BY_NAME, Source, download
from hotrows.runtime.units import parse_bytes

downloading = import_module("hotrows.data.datasets.download")  # the function has the name of its module

CONTENT = bytes(range(256)) * 20
MD5 = hashlib.md5(CONTENT).hexdigest()


def packed(name):
    """An archive that holds folder/inner.txt."""
    file = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("folder/inner.txt", CONTENT)
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            member = tarfile.TarInfo("folder/inner.txt")
            member.size = len(CONTENT)
            archive.addfile(member, io.BytesIO(CONTENT))
    return file.getvalue()


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT, or an archive, from any byte on; `ranges` remembers the ranges."""

    ranges: ClassVar[list] = []
    resumes = True
    cuts_off = False
    says_length = True

    def do_GET(self):
        if self.path == "/gone":
            self.send_error(404)
            return
        body = packed(self.path) if "." in self.path else CONTENT
        begun = self.headers.get("Range", "bytes=0-")
        self.ranges.append(self.headers.get("Range"))
        first = int(begun[6:-1]) if self.resumes else 0
        if first >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if self.says_length:
            self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        self.wfile.write(body[first : first + 100 if self.cuts_off else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.ranges, Server.resumes, Server.cuts_off = [], True, False
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def data_set_of(*sources):
    return replace(BY_NAME["adult"], sources=sources)


def test_a_file_is_downloaded_once_and_verified(server, tmp_path):
    seen = []
    source = Source("raw.txt", f"{server}/file", MD5)
    for _ in range(2):
        paths = download(data_set_of(source), tmp_path, lambda *done: seen.append(done))
    assert paths == [tmp_path / "raw.txt"]
    assert paths[0].read_bytes() == CONTENT
    assert Server.ranges == [None]
    assert ("raw.txt", len(CONTENT), len(CONTENT)) in seen


def test_a_download_goes_on_where_it_stopped(server, tmp_path):
    (tmp_path / "raw.txt.part").write_bytes(CONTENT[:1000])
    download(data_set_of(Source("raw.txt", f"{server}/file", MD5)), tmp_path)
    assert Server.ranges == ["bytes=1000-"]
    assert (tmp_path / "raw.txt").read_bytes() == CONTENT


def test_a_server_that_cannot_resume_sends_all_of_it(server, tmp_path):
    Server.resumes = False
    (tmp_path / "raw.txt.part").write_bytes(b"else")
    download(data_set_of(Source("raw.txt", f"{server}/file", MD5)), tmp_path)
    assert (tmp_path / "raw.txt").read_bytes() == CONTENT


def test_a_part_of_another_file_is_downloaded_anew(server, tmp_path):
    (tmp_path / "raw.txt.part").write_bytes(CONTENT * 2)
    download(data_set_of(Source("raw.txt", f"{server}/file", MD5)), tmp_path)
    assert (tmp_path / "raw.txt").read_bytes() == CONTENT


def test_a_connection_that_breaks_keeps_what_came(server, tmp_path):
    Server.cuts_off = True
    with pytest.raises(ValueError, match="could not be read to its end .*; run the command again"):
        download(data_set_of(Source("raw.txt", f"{server}/file", MD5)), tmp_path)
    assert (tmp_path / "raw.txt.part").read_bytes() == CONTENT[:100]
    Server.cuts_off = False
    download(data_set_of(Source("raw.txt", f"{server}/file", MD5)), tmp_path)
    assert (tmp_path / "raw.txt").read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error(server, tmp_path):
    with pytest.raises(ValueError, match=f"has md5 {MD5} where 0000 was expected; delete it"):
        download(data_set_of(Source("raw.txt", f"{server}/file", "0000")), tmp_path)
    assert not (tmp_path / "raw.txt").exists()


@pytest.mark.parametrize("says_length", [True, False])
def test_a_server_that_sends_without_end_is_left(server, tmp_path, monkeypatch, says_length):
    """Without a Content-Length nothing ended a download but a full disk."""
    monkeypatch.setattr(Server, "says_length", says_length)
    monkeypatch.setattr(downloading, "_BLOCK", 1000)
    monkeypatch.setattr(downloading, "_LEAST_BOUND", 4000)
    small = replace(data_set_of(Source("raw.txt", f"{server}/file", MD5)), size="2 KB")
    with pytest.raises(ValueError, match=r"/file sends more than 4,000 bytes, but all of adult has 2 KB"):
        download(small, tmp_path)
    assert not list(tmp_path.iterdir())
    download(replace(small, size="2.6 KB"), tmp_path)
    assert (tmp_path / "raw.txt").read_bytes() == CONTENT


def test_every_data_set_states_a_size_that_bounds_its_downloads():
    assert all(parse_bytes(data_set.size) > 0 for data_set in BY_NAME.values())


def test_an_address_that_answers_with_an_error_is_named(server, tmp_path):
    with pytest.raises(ValueError, match="/gone answered 404 Not Found where raw.txt was expected"):
        download(data_set_of(Source("raw.txt", f"{server}/gone")), tmp_path)


def test_no_network_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="could not be read to its end .*put raw.txt into"):
        download(data_set_of(Source("raw.txt", "http://127.0.0.1:9/file")), tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archives_are_unpacked_and_their_files_verified(server, tmp_path, name):
    archive = Source(name, f"{server}/{name}")
    paths = download(data_set_of(archive, Source("inner.txt", md5=MD5)), tmp_path)
    assert paths[1] == tmp_path / "folder" / "inner.txt"
    with pytest.raises(ValueError, match=r"inner.txt has md5 .* where 1234 was expected"):
        download(data_set_of(archive, Source("inner.txt", md5="1234")), tmp_path)


def unpacked(tmp_path, name, content):
    """Downloads what is there already, so that it is only unpacked; the message that refuses it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        download(data_set_of(Source(name, "http://127.0.0.1:9/none")), tmp_path)
    assert not (tmp_path / f"{name}.unpacked").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def tar_of(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def zip_of(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def link(kind, target):
    member = tarfile.TarInfo("raw.txt")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "name", ["../out.txt", "/tmp/w-out.txt", "a/../../out.txt", "..\\out.txt", "C:\\out"]
)
def test_no_member_of_an_archive_leaves_its_folder(tmp_path, name):
    """Zip files wrote such members elsewhere below the folder; tar files ended in a traceback."""
    inside = tmp_path / "inside"
    inside.mkdir()
    assert "would write outside its folder" in unpacked(inside, "a.zip", zip_of(name, b"x"))
    content = tar_of((tarfile.TarInfo(name), b"x"))
    assert "would write outside its folder" in unpacked(inside, "a.tar.gz", content)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "a.zip", "inside"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_not_unpacked(tmp_path, kind):
    content = tar_of((link(kind, "/etc/passwd"), b""), (tarfile.TarInfo("raw.txt"), b"x"))
    assert "has 'raw.txt', which is no plain file" in unpacked(tmp_path, "a.tar.gz", content)


def test_what_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    """Decompression bombs: also one in a header of tar, which is read into memory."""
    monkeypatch.setattr(downloading, "_LEAST_BOUND", 1 << 16)
    bomb = bytes(8 << 20)
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    for content in (tar_of((tarfile.TarInfo("raw.txt"), bomb)), tar_of((header, bomb))):
        assert "a.tar.gz unpacks to more than" in unpacked(tmp_path, "a.tar.gz", content)
    assert "a.zip unpacks to more than" in unpacked(tmp_path, "a.zip", zip_of("raw.txt", bomb))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 << 20


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_a_damaged_archive_is_one_line(tmp_path, name):
    """It ended in a traceback."""
    whole = packed(name)
    for content in (
        b"",
        b"no archive at all",
        whole[: len(whole) // 2],
        whole[:40] + bytes(9) + whole[49:],
    ):
        assert f"{name} is damaged or no such archive" in unpacked(tmp_path, name, content)


def test_a_set_behind_a_login_says_where_to_sign_in(tmp_path):
    with pytest.raises(ValueError, match="avazu cannot be downloaded without an account: sign in at"):
        download(BY_NAME["avazu"], tmp_path)


def test_the_bundled_files_are_those_of_the_archive(tmp_path):
    from importlib.resources import files

    for source in BY_NAME["adult"].sources:
        body = (files("hotrows.data.datasets") / "files" / f"{source.file}.gz").read_bytes()
        assert hashlib.md5(gzip.decompress(body)).hexdigest() == source.md5
