#!/usr/bin/env python3
"""docs_check: checks what MkDocs does not see. Links and anchors of the pages outside docs/
exist, README.md has at most 80 lines, and no line is longer than 100 characters (except table
rows and links).
"""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
OUTSIDE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors_of(path):
    """The anchors of the headings, as MkDocs and GitHub derive them from plain words."""
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in words}


def broken_links(page):
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{page.name}: the link {target} points to no file"
        elif anchor and anchor not in anchors_of(file):
            yield f"{page.name}: {path or page.name} has no heading for the link #{anchor}"


def long_lines(page):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if len(line) > 100 and not line.lstrip().startswith("|") and " " in line.strip():
            yield f"{page.relative_to(ROOT)}:{number}: {len(line)} characters, at most 100"


def main():
    pages = [*OUTSIDE, *sorted((ROOT / "docs").rglob("*.md"))]
    faults = [fault for page in OUTSIDE for fault in broken_links(page)]
    faults += [fault for page in pages for fault in long_lines(page)]
    lines = len(OUTSIDE[0].read_text().splitlines())
    if lines > 80:
        faults.append(f"README.md: {lines} lines, at most 80")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
