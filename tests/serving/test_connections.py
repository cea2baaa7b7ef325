"""`hotrows serve` beside clients that would stop it: by doing nothing, too slowly, or too much."""

import contextlib
import json
import resource
import signal
import socket
import threading
import time

import pytest

from tests.support.server_process import served

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SECONDS, CONNECTIONS, IDLE = 1, 40, 4
OPTIONS = {
    "--timeout": SECONDS,
    "--max-connections": CONNECTIONS,
    "--idle-timeout": IDLE,
    "--max-bodies": "300KiB",
    "--drain": 2,
}
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
ROW = b'[{"user": 3}]'


def post(body, size=None):
    size = len(body) if size is None else size
    return b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (size, body)


@pytest.fixture(scope="module")
def server(din_bundle):
    options = [str(word) for option in OPTIONS.items() for word in option]
    with served(din_bundle, *options) as process_and_port:
        yield process_and_port


@pytest.fixture
def connect(server):
    """Opens connections, which are closed after the test."""
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1", server[1]
        yield lambda: stack.enter_context(socket.create_connection(address, timeout=30))


def answer_of(connection, size=0):
    """The status and the body of the next answer; (0, b"") where the connection ends without one."""
    reader = connection.makefile("rb")
    line = reader.readline()
    if not line:
        return 0, b""
    headers = dict(iter(lambda: reader.readline().strip().lower().partition(b": ")[::2], (b"", b"")))
    return int(line.split()[1]), reader.read(int(headers.get(b"content-length", 0)))


def asked(connection, raw):
    connection.sendall(raw)
    return answer_of(connection)


def seconds_until_closed(connection):
    begin = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return time.monotonic() - begin


def keeps_sending(connection, piece, every=0.1):
    """Sends pieces until the connection ends, or for half a minute."""

    def send():
        with contextlib.suppress(OSError):
            for _ in range(int(30 / every)):
                connection.sendall(piece)
                time.sleep(every)

    threading.Thread(target=send, daemon=True).start()


def test_a_client_that_does_not_send_a_whole_request_is_not_waited_for(connect):
    starts = b"", b"GET /healthz HT", HEALTH[:-2], post(b"[", 100), HEALTH + b"GET"
    silent = [connect() for _ in starts]
    for connection, start in zip(silent, starts, strict=True):
        connection.sendall(start)
    endless = [(HEALTH[:-2], b"a: b\r\n"), (post(b"", 10**9), b" "), (post(b"", 10**6), b" ")]
    slow = [connect() for _ in endless]
    for connection, (start, piece) in zip(slow, endless, strict=True):
        connection.sendall(start)
        keeps_sending(connection, piece)
    begin = time.monotonic()
    for connection in (*silent, *slow):
        seconds_until_closed(connection)
    assert SECONDS / 2 < time.monotonic() - begin < IDLE + 10 * SECONDS


def test_a_body_that_does_not_arrive_is_answered_408(connect):
    status, body = asked(connect(), post(b"[", 100))
    assert (status, json.loads(body)["detail"]) == (408, "no whole body after 1 s; come back later")


def test_a_client_that_reads_no_answer_is_not_waited_for(connect):
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        for _ in range(100_000):
            connection.sendall(HEALTH.replace(b"healthz", b"metrics"))


@pytest.mark.parametrize(
    "raw",
    [
        HEALTH[:-2] + b"a: b\r\n" * 10_000,
        HEALTH[:-2] + b"a: " + b"b" * 100_000,
        b"GET /" + b"a" * 100_000,
        HEALTH * 1000,
        post(b"", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        + b"1\r\n \r\n" * 50_000,
        b"\x16\x03\x01\x02\x00" * 40,
    ],
)
def test_absurd_headers_and_pieces_end_the_connection_early(connect, raw):
    connection = connect()
    keeps_sending(connection, raw)
    assert seconds_until_closed(connection) < 20
    assert asked(connect(), HEALTH)[0] == 200


def test_a_few_requests_may_be_sent_before_the_first_answer(connect):
    connection = connect()
    connection.sendall(post(ROW) + HEALTH + post(b"{") + post(ROW))
    answers = b""
    while answers.count(b"HTTP/1.1 ") < 4 or not answers.endswith(b"}"):
        answers += connection.recv(1 << 16)
    statuses = [int(answer[:3]) for answer in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 400, 200]


def test_an_answer_does_not_wait_for_its_second_part(connect):
    """Of a socket that asyncio has not made, it leaves Nagle's algorithm on: 40 ms for each answer."""
    connection, seconds = connect(), []
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(30):
        begin = time.monotonic()
        assert asked(connection, HEALTH)[0] == 200
        seconds.append(time.monotonic() - begin)
    assert min(seconds[5:]) < 0.03


def test_more_idle_clients_than_connections_keep_nobody_out(connect):
    kept = connect()
    idle = [connect() for _ in range(3 * CONNECTIONS)]
    for connection in idle[::2]:
        connection.sendall(b"GET /healthz HT")
    for connection in idle[1::4]:
        connection.sendall(post(b"[", 50))
    for _ in range(5):
        assert asked(connect(), HEALTH)[0] == asked(connect(), post(ROW))[0] == 200
    assert seconds_until_closed(kept) < 20


def test_an_idle_connection_stays_as_long_as_proxies_need(connect):
    connection = connect()
    assert asked(connection, post(ROW))[0] == 200
    time.sleep(IDLE / 2)
    assert asked(connection, HEALTH)[0] == 200
    assert IDLE / 2 < seconds_until_closed(connection) < IDLE + 20


def test_all_bodies_together_are_bounded_and_small_ones_are_always_taken(connect):
    held = connect()
    held.sendall(post(ROW + b" " * 299_000, 400_000))
    other, detail = connect(), b""
    for _ in range(100):  # until the first one has arrived
        status, detail = asked(other, post(ROW.ljust(250_000)))
        if status == 503:
            break
    assert status == 503 and b"more bodies than it can hold" in detail
    assert asked(connect(), post(ROW.ljust(60_000)))[0] == 200
    held.close()


def test_one_sender_of_the_largest_bodies_holds_up_nobody(din_bundle):
    """8 MiB of empty lists once held the interpreter, and /healthz with it, for two seconds each."""
    body, statuses, seconds = b"[" + b"[]," * 2_700_000 + b"[]]", set(), []
    with served(din_bundle, "--timeout", "30", "--drain", "0") as (_, port):
        ends = time.monotonic() + 5

        def ask(raw):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                return asked(connection, raw)[0]

        def send():
            while time.monotonic() < ends:
                statuses.add(ask(post(body)))

        sender = threading.Thread(target=send)
        sender.start()
        while time.monotonic() < ends:
            begin = time.monotonic()
            assert ask(HEALTH) == ask(post(ROW)) == 200
            seconds.append(time.monotonic() - begin)
        sender.join(60)
    assert statuses == {413} and sorted(seconds)[len(seconds) * 9 // 10] < 0.5


def with_terminal():
    """Also where the tests themselves run under nohup, which ignores SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_that_is_to_end_says_so_and_answers_what_it_took(din_bundle, number):
    options = ("--drain", "3", "--timeout", "20")
    with served(din_bundle, *options, preexec_fn=with_terminal) as (process, port):
        begun = socket.create_connection(("127.0.0.1", port), timeout=30)
        begun.sendall(post(ROW[:5], len(ROW)))
        process.send_signal(number)
        time.sleep(0.5)
        for raw, status in ((HEALTH, 503), (post(ROW), 200)):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
                other.sendall(raw)
                content = b"".join(iter(lambda: other.recv(1 << 16), b""))
            assert content.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in content
        time.sleep(3)
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=30):
            pass
        assert asked(begun, ROW[5:])[0] == 200
        begun.close()
        assert process.wait(30) == 0


def test_too_few_files_are_said_once_and_do_not_stop_the_server(din_bundle):
    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))

    with served(din_bundle, "--drain", "0", preexec_fn=few_files) as (process, port):
        with contextlib.ExitStack() as stack:
            for _ in range(250):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
                    assert asked(other, post(ROW))[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        said = process.stderr.read().splitlines()
    assert "at most" in said[1] and len(set(said)) == len(said) < 6, said
