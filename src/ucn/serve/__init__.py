"""The web page and its REST interface: a thin layer over `Matcher`; everything is kept in memory only.

`app` has the routes and `schemas` their JSON; `service` encodes and matches; `uploads` holds sessions and
images until they expire, within `limits`; `guard` rejects foreign hosts, origins and long bodies; `samples`
are the bundled images; the folder ``page`` holds what the browser loads. FastAPI and uvicorn are in the extra
``serve``.
"""
