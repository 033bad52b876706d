"""Pages to look at: what is known of a pruning, as one HTML file that needs neither network nor server.

`prunewald.page` makes one of a Pruner, a packed file or a folder of results. `look` keeps what a Pruner goes by now for
a page that is made later; `of_pruner` and `of_file` give the data of a page, `write` makes the page of such data.
"""

from prunewald.web.drafting import look, of_file, of_pruner
from prunewald.web.rendering import render, write

__all__ = ["look", "of_file", "of_pruner", "render", "write"]
