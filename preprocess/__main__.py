"""python -m preprocess: videos to shards."""

from __future__ import annotations

from pipeline.errors import exit_with_message, quiet_until_ready


def main() -> None:
    from preprocess.command import main as command  # slow imports, during which Ctrl-C is to be quiet

    exit_with_message(command)


def console() -> None:
    quiet_until_ready()
    main()


if __name__ == "__main__":
    console()
