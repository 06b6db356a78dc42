"""Pages from templates beside this file, by Jinja."""

from typing import Any

import jinja2


def filled(name: str, /, **values: Any) -> str:
    """A template with these values, which are escaped in HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdt.eval", ""),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name).render(values)
