"""What tests send to the application, and what is behind it."""

import pyarrow as pa

from hotrows.serving.server import ARROW


def arrow_bytes(table, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def server_of(client):
    """What is behind the routes."""
    return next(route.endpoint.__self__ for route in client.app.routes if route.path == "/score")


def send_arrow(client, body):
    return client.post("/score", content=body, headers={"content-type": ARROW})
