"""The routes: thin functions between HTTP and `MatchService`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Collection
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware import Middleware
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

import ucn
from ucn.data.match_files import format_matches
from ucn.errors import ImageReadError, PointsError, UcnError
from ucn.serve.guard import HEADERS, Guard, explain
from ucn.serve.images import StoredImage
from ucn.serve.intake import Intake
from ucn.serve.lanes import CLIENT, CapacityError, UnavailableError
from ucn.serve.limits import MAX_POINTS, Limits
from ucn.serve.samples import PAIRS, Samples
from ucn.serve.schemas import (
    Image,
    MatchRequest,
    MatchResponse,
    Problem,
    Sample,
    Session,
    Status,
    WeightsChoice,
)
from ucn.serve.service import MatchService
from ucn.serve.uploads import NotFoundError, Uploads
from ucn.types import Matches, SimilarityMap

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_STATUSES: dict[type[UcnError], int] = {
    ImageReadError: 422,
    PointsError: 422,
    NotFoundError: 404,
    CapacityError: 429,
    UnavailableError: 503,
}
_DECODE_SECONDS = 60.0  # with the wait for the client's turn
_SWEEP_SECONDS = 30.0
_ERRORS = {
    400: "The request is malformed.",
    403: "The request comes from another web site.",
    404: "The session, image or weights do not exist.",
    408: "The upload is too slow.",
    413: "The body is too long.",
    415: "The body is not an image.",
    421: "The server does not accept this host name.",
    422: "A value, a point or an image is invalid.",
    429: "This client has reached a limit.",
    503: "The server is busy, or stops.",
}

Name = Annotated[str, Path(min_length=1, max_length=64)]


class _Jpeg(Response):
    media_type = "image/jpeg"


class _Csv(Response):
    media_type = "text/csv"


def _describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses for the OpenAPI document; those of the guard belong to every route."""
    return {
        status: {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted((*statuses, 403, 413, 421, 503))
    }


class ServerState:
    """State that the routes share."""

    def __init__(self, service: MatchService, limits: Limits, default_weights: str) -> None:
        self.service, self.limits, self.default_weights = service, limits, default_weights
        self.uploads = Uploads(limits, service.forget)
        self.samples = Samples()
        self.intake = Intake(limits.max_receiving * limits.max_upload_bytes, limits.receive_seconds)

    def drain(self) -> None:
        """Refuses all requests that have not begun: the server stops."""
        self.intake.drain()
        self.service.drain()

    def find(self, name: str) -> StoredImage:
        """The sample or upload of this name; raises `NotFoundError`."""
        sample = self.samples.find(name)
        return sample if sample is not None else self.uploads.find(name)

    def match(self, request: MatchRequest) -> tuple[Matches, SimilarityMap | None]:
        """Matches the images of a request; cached results of images deleted meanwhile are dropped."""
        image0, image1 = self.find(request.image0), self.find(request.image1)
        try:
            return self._match(request, image0, image1)
        finally:
            for image in (image0, image1):
                try:
                    self.find(image.name)
                except NotFoundError:
                    self.service.forget(image.name)

    def _match(
        self, request: MatchRequest, image0: StoredImage, image1: StoredImage
    ) -> tuple[Matches, SimilarityMap | None]:
        weights, points, which = request.weights, request.points, request.similarities_of
        if points is None:
            if which is not None:
                raise PointsError("similarities_of needs points; give points, or leave it out")
            return self.service.match(image0, image1, weights), None
        if which is not None and which >= len(points):
            raise PointsError(
                f"similarities_of must be below the number of points, {len(points)}, got {which}"
            )
        matches = self.service.match_points(image0, image1, weights, points)
        if which is None:
            return matches, None
        return matches, self.service.compute_similarity(image0, image1, weights, points[which])


def create_app(
    service: MatchService,
    limits: Limits | None = None,
    *,
    default_weights: str = "geometric",
    allowed_hosts: Collection[str] = (),
) -> FastAPI:
    """Creates the ASGI application.

    Args:
        service: encodes and matches; the caller closes it.
        limits: of sessions, uploads and memory.
        default_weights: selected when the page opens.
        allowed_hosts: accepted host names, besides localhost and IP addresses.
    """
    limits = limits or Limits()
    server = ServerState(service, limits, default_weights)
    app = FastAPI(
        title="ucn",
        summary="Find corresponding points of two images.",
        description="Upload two images, then match points of one in the other. Points are (x, y) in pixels "
        "of the upright image; the centre of the top-left pixel is (0, 0).",
        version=ucn.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: _live(server),
        middleware=[Middleware(Guard, allowed_hosts=allowed_hosts, limits=limits, intake=server.intake)],
    )
    app.state.server = server
    _explain_errors(app)
    _add_page(app)
    _add_sessions(app, server)
    _add_images(app, server)
    _add_matching(app, server)
    return app


@contextlib.asynccontextmanager
async def _live(server: ServerState) -> AsyncIterator[None]:
    """Deletes idle sessions in the background while the server runs."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, server.limits.idle_seconds))
            server.uploads.expire()

    task = asyncio.create_task(sweep())
    try:
        yield
    finally:
        task.cancel()


def _explain_errors(app: FastAPI) -> None:
    """Makes every error one sentence in `detail`."""

    async def explain_error(_: Request, error: Exception) -> Response:
        status = next(code for kind, code in _STATUSES.items() if isinstance(error, kind))
        return explain(status, str(error))

    async def explain_fault(_: Request, error: Exception) -> Response:
        response = explain(500, "a fault of ucn; please report it with what the server has logged")
        response.headers.update(HEADERS)  # these responses do not pass the guard
        return response

    async def leave(_: Request, error: Exception) -> Response:
        return Response(status_code=408)  # nobody reads it: the client has gone

    async def explain_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        return explain(422, f"{place}: {first['msg']}; see /docs")

    for kind in _STATUSES:
        app.add_exception_handler(kind, explain_error)
    app.add_exception_handler(ClientDisconnect, leave)
    app.add_exception_handler(Exception, explain_fault)
    app.add_exception_handler(RequestValidationError, explain_validation)


def _add_page(app: FastAPI) -> None:
    """Serves the files of the page, which are read once; no path reaches any other file."""
    folder = resources.files("ucn.serve") / "page"
    files = {
        item.name: (item.read_bytes(), _MEDIA_TYPES[item.name.rsplit(".", 1)[-1]])
        for item in folder.iterdir()
        if item.name.rsplit(".", 1)[-1] in _MEDIA_TYPES
    }

    def send(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such page")
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return send("index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return send("docs.html")

    @app.get("/page/{name}", include_in_schema=False)
    def page(name: str) -> Response:
        return send(name)


def _add_sessions(app: FastAPI, server: ServerState) -> None:
    # FastAPI needs the model once; all other routes refer to its schema.
    named: dict[int | str, dict[str, Any]] = {
        **_describe_errors(),
        403: {"model": Problem, "description": _ERRORS[403]},
    }

    @app.get("/api/status", responses=named, tags=["status"])
    def status() -> Status:
        """Weights, samples and limits of this server."""
        return _describe(server)

    @app.post("/api/sessions", status_code=201, responses=_describe_errors(429), tags=["images"])
    def open_session() -> Session:
        """Open a session, which holds images until it expires."""
        session = server.uploads.open_session(CLIENT.get())
        return Session(session=session, idle_seconds=server.limits.idle_seconds)

    @app.delete(
        "/api/sessions/{session}", status_code=204, responses=_describe_errors(404, 422), tags=["images"]
    )
    def close_session(session: Name) -> None:
        """Delete a session and its images."""
        server.uploads.close_session(session)


def _add_images(app: FastAPI, server: ServerState) -> None:
    @app.post(
        "/api/sessions/{session}/images",
        status_code=201,
        responses=_describe_errors(400, 404, 408, 415, 422, 429),
        openapi_extra={"requestBody": _UPLOAD},
        tags=["images"],
    )
    async def send_image(session: Name, request: Request) -> Image:
        """Upload an image: the body is the image file."""
        with server.uploads.receive(session):
            content = await _read_body(request)
            decoding = server.service.decode(secrets.token_urlsafe(18), content)
            try:
                async with asyncio.timeout(_DECODE_SECONDS):
                    image = await asyncio.wrap_future(decoding)
            except TimeoutError:
                raise UnavailableError("many images are being decoded; try again in a few seconds") from None
            server.uploads.add(session, image)
        return _describe_image(image)

    @app.get(
        "/api/images/{image}",
        responses=_describe_errors(404, 422),
        response_class=_Jpeg,
        tags=["images"],
    )
    def show_image(image: Name) -> Response:
        """The upright image as JPEG; large images are reduced."""
        return _Jpeg(server.find(image).shown)


def _add_matching(app: FastAPI, server: ServerState) -> None:
    errors = _describe_errors(400, 404, 422, 429)

    @app.post("/api/match", responses=errors, tags=["matching"])
    def match(request: MatchRequest) -> MatchResponse:
        """Match given points of image 0 in image 1 or, without points, find all mutual matches."""
        started = time.perf_counter()
        matches, similarities = server.match(request)
        milliseconds = 1000 * (time.perf_counter() - started)
        return MatchResponse.of(request.weights, matches, similarities, milliseconds)

    @app.post(
        "/api/match.csv",
        responses=errors,
        response_class=_Csv,
        tags=["matching"],
    )
    def match_csv(request: MatchRequest) -> Response:
        """The same as CSV: x0, y0, x1, y1, score, is_mutual, as `ucn match` writes it."""
        matches, _ = server.match(request)
        return _Csv(format_matches(matches))


_UPLOAD = {
    "required": True,
    "content": {
        kind: {"schema": {"type": "string", "format": "binary"}}
        for kind in ("application/octet-stream", "image/jpeg", "image/png", "image/webp")
    },
}


async def _read_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "application/octet-stream").split(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(
            415, "the body must be an image file: send it as image/… or application/octet-stream"
        )
    return await request.body()


def _describe(server: ServerState) -> Status:
    samples = [
        Sample(
            title=pair.title,
            image0=_describe_image(server.find(pair.image0)),
            image1=_describe_image(server.find(pair.image1)),
            credit=pair.credit,
        )
        for pair in PAIRS
    ]
    return Status(
        version=ucn.__version__,
        weights=[
            WeightsChoice(
                name=info.name, task=info.task, description=info.description, restrictions=info.restrictions
            )
            for info in server.service.list_weights()
        ],
        default_weights=server.default_weights,
        samples=samples,
        max_upload_bytes=server.limits.max_upload_bytes,
        max_pixels=server.limits.max_pixels,
        max_points=MAX_POINTS,
    )


def _describe_image(image: StoredImage) -> Image:
    height, width = image.image_hw
    return Image(image=image.name, width=width, height=height)
