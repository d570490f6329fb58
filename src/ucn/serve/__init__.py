"""The web page and its REST interface: a thin layer over `Matcher`; everything in it is kept in memory only.

`app` has the routes and `schemas` what goes through them; `engine` encodes and matches, and remembers;
`uploads` holds sessions and images (`pictures`) until they expire, within `limits`; `guard` refuses hosts,
origins and bodies; `samples` are the pictures that ship; the folder ``page`` is what the browser gets.
FastAPI and uvicorn are in the extra ``serve``.
"""
