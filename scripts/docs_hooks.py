"""docs_hooks: what MkDocs does to a page before it reads it.

The wire format names its hex blocks ("```hex chunks_sign"), so that tests find them.
Python-Markdown knows no second word there; the name becomes a line above the block.
"""
# SPDX-License-Identifier: Apache-2.0
import re


def on_page_markdown(markdown, **_):
    return re.sub(r"^```hex (\w+)$", r"`\1`:\n\n```hex", markdown, flags=re.MULTILINE)
