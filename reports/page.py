"""Templates of the HTML pages. All text from models, corpora and folders is escaped."""

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from argap.reports.tokens import visible

TEMPLATES = Path(__file__).parent / "templates"


def template(name: str, **filters: Callable[..., object]) -> Template:
    """Load a template with the filters ``visible`` and ``filters``. Rendering raises for undefined variables."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, **filters}
    return environment.get_template(name)
