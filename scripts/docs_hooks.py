"""docs_hooks: changes a page before MkDocs reads it.

The wire format names its hex blocks ("```hex chunks_sign"), so that tests find them.
Python-Markdown does not accept a second word there, so the name becomes a line above the block.
"""
# SPDX-License-Identifier: Apache-2.0
import re


def on_page_markdown(markdown, **_):
    return re.sub(r"^```hex (\w+)$", r"`\1`:\n\n```hex", markdown, flags=re.MULTILINE)
