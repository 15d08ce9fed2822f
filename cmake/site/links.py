"""links.py FOLDER: fails if a page of the site links to a file or an anchor that does not exist."""
import html.parser
import pathlib
import sys
import urllib.parse

SITE = pathlib.Path(sys.argv[1]).resolve()


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


pages = {path: Page(path) for path in SITE.rglob("*.html")}
dead = set()
for path, page in pages.items():
    for link in page.links:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc or link == "#nested-classes":
            continue  # another site; and a heading that Doxygen leaves out
        target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
        anchor = urllib.parse.unquote(parts.fragment)
        if not target.is_file() or target in pages and anchor not in pages[target].anchors:
            dead.add("%s: %s" % (path.relative_to(SITE), link))
print("\n".join(sorted(dead)) or "%d pages, no dead link" % len(pages))
sys.exit(bool(dead) or not pages)
