"""The web page and its REST interface: a thin layer over `Matcher`; everything is kept in memory only.

`app` has the routes and `schemas` their JSON; `service` encodes and matches, in `lanes` in which clients take
turns; `decoder` has uploads decoded by child processes; `uploads` holds sessions and images until they
expire, within `limits`; `connection` limits connections, `guard` rejects foreign hosts and origins, `intake`
limits bodies; `samples` are the bundled images; the folder ``page`` holds what the browser loads. FastAPI and
uvicorn are in the extra ``serve``.
"""
