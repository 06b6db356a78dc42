"""Numbers in words, and how wide printed text may be."""

TERMINAL_WIDTH = 100
"""Maximum width of what a command prints."""


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """A number and a noun, as in '1 video' and '2 videos'."""
    return f"{count} {noun if count == 1 else plural_noun or noun + 's'}"
