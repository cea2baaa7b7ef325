"""Scores single requests over HTTP: `python examples/online.py RUN DATA [PORT]`.

RUN is the folder of a training and DATA the prepared data it read. A request is a list of rows, each
an object of raw columns; columns that are left out count as missing, names that are not known are
refused. Needs `pip install '.[online]'`.

    curl localhost:8000/score -H 'content-type: application/json' -d '[{"user": "17", "item": "a"}]'
"""

import sys

import pyarrow as pa
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import hotrows
from hotrows.data import Encoder

MOST_ROWS = 1000


def scorer(run: str, data: str) -> Starlette:
    predictor, encoder = hotrows.load_run(run), Encoder.open(data, threads=1)

    async def score(request: Request) -> JSONResponse:
        try:
            rows = await request.json()
        except ValueError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise HTTPException(422, "expected a list of rows, an object of columns each")
        if not 0 < len(rows) <= MOST_ROWS:
            raise HTTPException(422, f"expected 1 to {MOST_ROWS} rows, found {len(rows)}")
        names = dict.fromkeys(name for row in rows for name in row)
        try:
            encoder.check_columns(names)
            table = pa.table({name: [row.get(name) for row in rows] for name in names})
            batches = list(encoder.encode(table))
        except (ValueError, pa.ArrowException) as error:
            raise HTTPException(422, str(error)) from None
        return JSONResponse(torch.cat(list(predictor.predict(batches))).tolist())

    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status_code)

    routes = [Route("/score", score, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


if __name__ == "__main__":
    torch.set_num_threads(1)  # one request at a time: more threads serve none of them sooner
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 8000
    uvicorn.run(scorer(sys.argv[1], sys.argv[2]), port=port)
