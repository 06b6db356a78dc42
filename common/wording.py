"""Numbers and lengths of time in words, and how wide printed text may be."""

TERMINAL_WIDTH = 100
"""Maximum width of what a command prints."""


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """A number and a noun, as in '1 video' and '2 videos'."""
    return f"{count} {noun if count == 1 else plural_noun or noun + 's'}"


def duration(seconds: float) -> str:
    """A rough length of time, such as 'about 5 minutes'."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return f"about {plural(round(seconds / length), unit)}"
    return f"about {plural(max(1, round(seconds)), 'second')}"
