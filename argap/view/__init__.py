"""``argap view``: a local page over a result. Every number on it comes from `argap.result` and the modules below it.

`argap.view.answers` computes what the page asks for, `argap.view.app` serves it, and ``page/`` holds the page itself:
ES modules and one style sheet, without a build step.
"""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The content security policy of the page, served or as static files."""
