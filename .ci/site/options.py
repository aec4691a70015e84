"""Options that a function takes by ``**options: Unpack[T]`` and describes by name are shown as its parameters."""

from __future__ import annotations

import re
from typing import Any

from griffe import Expr, ExprSubscript, Extension, Function, Parameter, ParameterKind


class NamedOptions(Extension):
    """Adds the members of ``T`` that the docstring describes, and removes ``**options`` unless that is described too."""

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        described = set(re.findall(r"^ +(\w+): ", func.docstring.value if func.docstring else "", re.MULTILINE))
        for rest in [each for each in func.parameters if each.kind is ParameterKind.var_keyword]:
            match rest.annotation:
                case ExprSubscript(slice=Expr() as kind) if rest.annotation.canonical_path == "typing.Unpack":
                    options = func.modules_collection[kind.canonical_path].attributes
                case _:
                    continue
            named = [
                Parameter(name, annotation=option.annotation, kind=ParameterKind.keyword_only, default="...")
                for name, option in options.items()
                if name in described
            ]
            del func.parameters[rest.name]
            for parameter in [*named, *([rest] if rest.name in described or not named else [])]:
                func.parameters.add(parameter)
