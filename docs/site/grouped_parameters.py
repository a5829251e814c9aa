"""Give each parameter in a group that a docstring describes together its own type and default.

The parser of numpy docstrings gives them all the type and default of the first.
"""

import griffe


class GroupedParameters(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        for section in func.docstring.parsed if func.docstring else ():
            if isinstance(section, griffe.DocstringSectionParameters):
                for described in section.value:
                    own = func.parameters[described.name]
                    described.annotation, described.value = own.annotation, own.default
