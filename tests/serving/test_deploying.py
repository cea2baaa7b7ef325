"""The files of examples/deploy (nginx, systemd, Docker, Kubernetes, Grafana), as far as they run here."""

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hotrows.cli import cli
from hotrows.serving import Scorer, application
from hotrows.serving.metrics_page import ServerMetrics
from tests.support.server_process import served, wait_for

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
TOKEN = f"Bearer {'3f6c' * 16}"  # as long as those of `openssl rand -hex 32`


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def nginx(folder, upstream):
    """nginx by the configuration of the examples; yields its port. upstream: the port of the server."""
    port, config = free_port(), (DEPLOY / "nginx.conf").read_text()
    for name in ("server.crt", "server.key", "token.conf"):
        assert f"/etc/nginx/{name}" in config
    config = config.replace("/etc/nginx/", f"{folder}/").replace("scores:8000", f"127.0.0.1:{upstream}")
    config = config.replace("listen 8443", f"listen 127.0.0.1:{port}")
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi")
    )
    places += "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("uwsgi", "scgi"))
    config = config.replace("http {", f"http {{\n{places}access_log off;\n")
    (folder / "nginx.conf").write_text(f"pid {folder}/pid;\ndaemon off;\nmaster_process off;\n{config}")
    (folder / "token.conf").write_text(f'"{TOKEN}" 1;\n')
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    key = ["-newkey", "rsa:2048", "-keyout", folder / "server.key", "-out", folder / "server.crt"]
    subprocess.run(["openssl", "req", "-x509", *subject, *key], check=True, capture_output=True)
    command = ["nginx", "-c", folder / "nginx.conf", "-e", folder / "errors"]
    with subprocess.Popen(command) as process:
        try:
            for _ in range(200):
                threading.Event().wait(0.05)
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (folder / "errors").read_text()
            yield port
        finally:
            process.kill()


@pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx, openssl"
)
def test_nginx_asks_for_a_token_and_speaks_tls(din_bundle, tmp_path):
    def status(path, token=None, body=None):
        headers = {"authorization": token} if token else {}
        headers["content-type"] = "application/json"
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    with served(din_bundle) as (_, upstream), nginx(tmp_path, upstream) as port:
        trusted = ssl.create_default_context(cafile=tmp_path / "server.crt")
        code, schema = status("/schema", TOKEN)
        body = json.dumps(json.loads(schema)["example"]).encode()
        assert (code, status("/score", TOKEN, body)[0]) == (200, 200)
        assert [status("/score", wrong, body)[0] for wrong in (None, TOKEN[:-1], TOKEN[7:])] == [401] * 3
        assert status("/healthz")[0] == 200 and status("/metrics", TOKEN)[0] == 404
        assert status("/score", TOKEN, b" " * (9 << 20))[0] == 413


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_reads_the_unit(tmp_path):
    unit = tmp_path / "hotrows.service"
    text = (DEPLOY / "hotrows.service").read_text()
    unit.write_text(text.replace("/opt/hotrows/bin/hotrows", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert str(unit) not in found.stderr and "hotrows.service" not in found.stderr, found.stderr
    check_command(re.search(r"ExecStart=\S+ (.*)", text)[1].split())


def check_command(arguments):
    """The command line accepts the arguments of `hotrows`; paths need not be there."""
    command = cli.commands[arguments[0]]
    names = {name for param in command.params for name in param.opts}
    assert {word for word in arguments if word.startswith("--")} <= names, arguments


def listed(text):
    """What lists in an instruction of a Dockerfile hold, in order."""
    return [
        word for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.M) for word in json.loads(line)
    ]


def test_the_image_has_what_the_server_needs_and_no_pytorch(din_bundle):
    text = (DEPLOY / "Dockerfile").read_text()
    _, *command = listed(text)
    check_command(command)
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[(.*)\]$", project, re.M)[1]
    needed += "".join(re.findall(r"^(?:online|serving) = \[(.*?)\] *(?:#.*)?$", project, re.M))
    wanted = {
        name for name in re.findall(r'"([^"]+)"', needed) if not name.startswith(("torch", "hotrows"))
    }
    assert set(re.findall(r'"(\w+>=[\d.]+)"', text)) == wanted
    code = "import sys; sys.modules['torch'] = None; from hotrows.cli import main; main(sys.argv[1:])"
    port = str(free_port())
    arguments = [str(din_bundle) if word == "/bundle" else word for word in command]
    arguments = [
        "127.0.0.1" if word == "0.0.0.0" else port if word == "8000" else word for word in arguments
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            wait_for(f"http://127.0.0.1:{port}/schema", process)
        finally:
            process.kill()


def test_the_image_is_built_of_what_a_wheel_needs_and_no_key():
    """It copied the whole clone: .venv, and the key of nginx."""
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for word in line.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied) and "." not in copied
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'^(?:readme|input) = "(.*)"|^license-files = \["(.*)"\]', project, re.M)
    needed = {"CMakeLists.txt", "pyproject.toml", "csrc", *("".join(pair) for pair in named)}
    assert {name for name in needed if not name.startswith("src/")} <= {*copied} and "src" in copied


def test_the_probes_and_paths_are_those_of_the_server(din_bundle):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (pod,) = deployment["spec"]["template"]["spec"]["containers"]
    check_command(["serve", *pod["args"]])
    ports = {probe[kind]["port"] for name, probe in pod.items() if name.endswith("Probe") for kind in
             ("httpGet", "tcpSocket") if kind in probe}  # fmt: skip
    assert ports == {8000} == {service["spec"]["ports"][0]["targetPort"]}
    assert pod["ports"] == [{"containerPort": 8000}] and "8000" in pod["args"]
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    paths = {pod["readinessProbe"]["httpGet"]["path"], pod["startupProbe"]["httpGet"]["path"]}
    health = compose["scores"]["healthcheck"]["test"][-1]
    paths |= {annotations["prometheus.io/path"], re.search(r"8000(/\w+)", health)[1]}
    with TestClient(application(Scorer(din_bundle))) as client:
        assert {client.get(path).status_code for path in paths} == {200}
    build = compose["scores"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    mounted = {volume.split(":")[1] for volume in compose["nginx"]["volumes"]}
    assert {f"/etc/nginx/{name}" for name in ("nginx.conf", "token.conf", "server.crt")} <= mounted


def test_the_board_shows_metrics_that_there_are():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    text = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    page = ServerMetrics().page(0, 0, {})
    source = (ROOT / "src/hotrows/serving/metrics_page.py").read_text()
    known = set(re.findall(r"hotrows_\w+", page)) | {
        f"hotrows_{name}" for name in re.findall(r'"(\w+)", "(?:gauge|counter)"', source)
    }
    assert set(re.findall(r"hotrows_\w+", text)) <= known
