"""The routes: thin functions between HTTP and `Engine`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterator
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware import Middleware
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

import ucn
from ucn.data.points import format_matches
from ucn.errors import ImageReadError, PointsError, UcnError
from ucn.serve.guard import Guard
from ucn.serve.limits import MAX_POINTS, Limits
from ucn.serve.pictures import HeldImage
from ucn.serve.samples import PAIRS, Samples
from ucn.serve.schemas import Answer, Image, Problem, Question, Sample, Session, Status, WeightsChoice
from ucn.serve.service import Engine
from ucn.serve.uploads import FullError, UnknownError, Uploads
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
    UnknownError: 404,
    FullError: 429,
}
_UPLOAD_SECONDS = 120
_SWEEP_SECONDS = 30.0
_REFUSALS = {
    400: "The request cannot be understood.",
    403: "It comes from another web site.",
    404: "There is no such session, image or weights.",
    408: "The upload took too long.",
    413: "It is too long.",
    415: "It is no image.",
    421: "It asks for a host that this server does not answer for.",
    422: "A value, a point or an image is not as it should be.",
    429: "The server is full or busy.",
}

Name = Annotated[str, Path(min_length=1, max_length=64)]


class _Jpeg(Response):
    media_type = "image/jpeg"


class _Csv(Response):
    media_type = "text/csv"


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of refusals for the OpenAPI document; those of the guard belong to every route."""
    return {
        status: {
            "description": _REFUSALS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted((*statuses, 403, 413, 421))
    }


class Desk:
    """All that the routes share."""

    def __init__(self, engine: Engine, limits: Limits, default_weights: str) -> None:
        self.engine, self.limits, self.default_weights = engine, limits, default_weights
        self.uploads = Uploads(limits, engine.forget)
        self.samples = Samples()
        self._receiving = 0  # changed by the event loop's thread only

    @contextlib.contextmanager
    def receive(self) -> Iterator[None]:
        """Holds one of the places for uploads under way; raises `FullError` where all are taken."""
        if self._receiving >= self.limits.max_receiving:
            raise FullError(f"{self._receiving} images are being sent already; try again in a few seconds")
        self._receiving += 1
        try:
            yield
        finally:
            self._receiving -= 1

    def find(self, name: str) -> HeldImage:
        """A sample or an upload."""
        sample = self.samples.find(name)
        return sample if sample is not None else self.uploads.find(name)

    def answer(self, question: Question) -> tuple[Matches, SimilarityMap | None]:
        """Answers a question; what was found in images that were forgotten meanwhile is forgotten too."""
        image0, image1 = self.find(question.image0), self.find(question.image1)
        try:
            return self._answer(question, image0, image1)
        finally:
            for image in (image0, image1):
                try:
                    self.find(image.name)
                except UnknownError:
                    self.engine.forget(image.name)

    def _answer(
        self, question: Question, image0: HeldImage, image1: HeldImage
    ) -> tuple[Matches, SimilarityMap | None]:
        weights, points, which = question.weights, question.points, question.similarities_of
        if points is None:
            if which is not None:
                raise PointsError("similarities_of needs points; give points, or leave it out")
            return self.engine.match(image0, image1, weights), None
        if which is not None and which >= len(points):
            raise PointsError(
                f"similarities_of must be below the number of points, {len(points)}, got {which}"
            )
        matches = self.engine.look_up(image0, image1, weights, points)
        if which is None:
            return matches, None
        return matches, self.engine.compare(image0, image1, weights, points[which])


def create_app(
    engine: Engine,
    limits: Limits | None = None,
    *,
    default_weights: str = "geometric",
    allowed_hosts: Collection[str] = (),
) -> FastAPI:
    """The application, ready for an ASGI server.

    Args:
        engine: what encodes and matches; its owner closes it.
        limits: what visitors may ask for.
        default_weights: those that the page begins with.
        allowed_hosts: names under which it may be asked for, besides localhost and plain addresses.
    """
    limits = limits or Limits()
    desk = Desk(engine, limits, default_weights)
    app = FastAPI(
        title="ucn",
        summary="Which point in one image is which point in another?",
        description="Send two images, then ask where points of one lie in the other. Points are (x, y) in "
        "pixels of the upright image; the centre of the top-left pixel is (0, 0).",
        version=ucn.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: _live(desk),
        middleware=[Middleware(Guard, allowed_hosts=allowed_hosts, max_upload_bytes=limits.max_upload_bytes)],
    )
    app.state.desk = desk
    _explain_errors(app)
    _add_page(app)
    _add_sessions(app, desk)
    _add_images(app, desk)
    _add_matching(app, desk)
    return app


@contextlib.asynccontextmanager
async def _live(desk: Desk) -> AsyncIterator[None]:
    """Forgets idle sessions while the server runs, even where nobody asks for anything."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, desk.limits.idle_seconds))
            desk.uploads.expire()

    task = asyncio.create_task(sweep())
    try:
        yield
    finally:
        task.cancel()


def _explain_errors(app: FastAPI) -> None:
    """Every refusal is one sentence in `detail`."""

    async def explain(_: Request, error: Exception) -> JSONResponse:
        status = next(code for kind, code in _STATUSES.items() if isinstance(error, kind))
        headers = {"Retry-After": "10"} if status == 429 else None
        return JSONResponse({"detail": str(error)}, status, headers)

    async def explain_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        return JSONResponse({"detail": f"{place}: {first['msg']}; see /docs"}, 422)

    for kind in _STATUSES:
        app.add_exception_handler(kind, explain)
    app.add_exception_handler(RequestValidationError, explain_validation)


def _add_page(app: FastAPI) -> None:
    """The files of the page, read once; no other file can be asked for, whatever the path."""
    folder = resources.files("ucn.serve") / "page"
    files = {
        item.name: (item.read_bytes(), _MEDIA_TYPES[item.name.rsplit(".", 1)[-1]])
        for item in folder.iterdir()
        if item.name.rsplit(".", 1)[-1] in _MEDIA_TYPES
    }

    def give(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such page")
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return give("index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return give("docs.html")

    @app.get("/page/{name}", include_in_schema=False)
    def page(name: str) -> Response:
        return give(name)


def _add_sessions(app: FastAPI, desk: Desk) -> None:
    # The model of refusals is named once, here; all other routes refer to it.
    named: dict[int | str, dict[str, Any]] = {
        **_refusals(),
        403: {"model": Problem, "description": _REFUSALS[403]},
    }

    @app.get("/api/status", responses=named, tags=["status"])
    def status() -> Status:
        """What this server offers: weights, samples and limits."""
        return _describe(desk)

    @app.post("/api/sessions", status_code=201, responses=_refusals(429), tags=["images"])
    def open_session() -> Session:
        """Open a session, which holds images until it is idle for too long."""
        return Session(session=desk.uploads.open_session(), idle_seconds=desk.limits.idle_seconds)

    @app.delete("/api/sessions/{session}", status_code=204, responses=_refusals(404, 422), tags=["images"])
    def close_session(session: Name) -> None:
        """Forget a session and its images at once."""
        desk.uploads.close_session(session)


def _add_images(app: FastAPI, desk: Desk) -> None:
    @app.post(
        "/api/sessions/{session}/images",
        status_code=201,
        responses=_refusals(400, 404, 408, 415, 422, 429),
        openapi_extra={"requestBody": _UPLOAD},
        tags=["images"],
    )
    async def send_image(session: Name, request: Request) -> Image:
        """Send an image: the bytes of its file are the body."""
        desk.uploads.check_session(session)
        with desk.receive():
            content = await _read_body(request)
            image = await run_in_threadpool(desk.engine.hold, secrets.token_urlsafe(18), content)
        desk.uploads.add(session, image)
        return _describe_image(image)

    @app.get(
        "/api/images/{image}",
        responses=_refusals(404, 422),
        response_class=_Jpeg,
        tags=["images"],
    )
    def show_image(image: Name) -> Response:
        """The picture, upright, as JPEG; a large one is reduced."""
        return _Jpeg(desk.find(image).shown)


def _add_matching(app: FastAPI, desk: Desk) -> None:
    refusals = _refusals(400, 404, 422, 429)

    @app.post("/api/match", responses=refusals, tags=["matching"])
    def match(question: Question) -> Answer:
        """Where do points of one image lie in the other? Or, without points: what matches at all?"""
        started = time.perf_counter()
        matches, similarities = desk.answer(question)
        milliseconds = 1000 * (time.perf_counter() - started)
        return Answer.of(question.weights, matches, similarities, milliseconds)

    @app.post(
        "/api/match.csv",
        responses=refusals,
        response_class=_Csv,
        tags=["matching"],
    )
    def match_csv(question: Question) -> Response:
        """The same as a table: x0, y0, x1, y1, score, is_mutual, as `ucn match` writes it."""
        matches, _ = desk.answer(question)
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
    try:
        async with asyncio.timeout(_UPLOAD_SECONDS):
            return await request.body()
    except TimeoutError:
        raise HTTPException(408, f"the upload took over {_UPLOAD_SECONDS} s; send a smaller file") from None


def _describe(desk: Desk) -> Status:
    samples = [
        Sample(
            title=pair.title,
            image0=_describe_image(desk.find(pair.image0)),
            image1=_describe_image(desk.find(pair.image1)),
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
            for info in desk.engine.list_weights()
        ],
        default_weights=desk.default_weights,
        samples=samples,
        max_upload_bytes=desk.limits.max_upload_bytes,
        max_pixels=desk.limits.max_pixels,
        max_points=MAX_POINTS,
    )


def _describe_image(image: HeldImage) -> Image:
    height, width = image.image_hw
    return Image(image=image.name, width=width, height=height)
