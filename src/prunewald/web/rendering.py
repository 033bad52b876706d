"""The page itself: one HTML file with its data, its style and its code in it."""

import os
from html import escape
from importlib.resources import files
from typing import Any

from prunewald.util.files import FilePath, replacing
from prunewald.web.encoding import embedded

# In this order: each file uses only what those before it define.
_SCRIPTS = (
    "data.js",
    "dom.js",
    "scales.js",
    "frame.js",
    "charts.js",
    "choosing.js",
    "estimating.js",
    "accuracy.js",
    "layers.js",
    "plane.js",
    "pictures.js",
    "tau.js",
    "explorer.js",
    "rest.js",
    "main.js",
)
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="prunewald">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
<header id="top"></header>
<main id="main"><noscript>This page draws its figures with JavaScript, which is turned off here.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>
(() => {{
"use strict";
{code}
}})();
</script>
</body>
</html>
"""


def render(data: dict[str, Any]) -> str:
    """The page of this data."""
    static = files("prunewald.web").joinpath("static")
    code = "\n".join(static.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = static.joinpath("page.css").read_text(encoding="utf-8")
    words = {"title": escape(f"{data['title']} - prunewald"), "policy": escape(_POLICY, quote=True)}
    return _PAGE.format(**words, style=style, data=embedded(data), code=code)


def write(data: dict[str, Any], path: FilePath) -> str:
    """Write a page; the file is there whole or not at all. Returns its path."""
    with replacing(path) as file:
        file.write(render(data).encode())
    return os.fspath(path)
