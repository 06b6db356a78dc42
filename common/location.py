"""The type of options that take a path or the URL of a folder in a store."""

from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from gdt.common.places import Place, as_place

Location = Annotated[
    Place,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: as_place(words[0]),
        is_instance=lambda value: isinstance(value, Place),
        str_from_instance=lambda value: [str(value)],
    ),
]
