"""Write reports: HTML pages, Markdown and the files beside them."""
