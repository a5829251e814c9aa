"""``argap view``: a local page over a result. Every number on it comes from `argap.result` and the modules below it.

`argap.view.answers` computes what the page asks for, `argap.view.app` serves it, and ``page/`` holds the page itself:
ES modules and one style sheet, without a build step.
"""
