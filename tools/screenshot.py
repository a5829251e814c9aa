"""Take README's picture, the tokens of a window in `argap view`: ``python tools/screenshot.py RESULT [MODEL]``.

Needs Playwright and Chromium (``ARGAP_CHROMIUM=PATH``, or on the path). Look at the picture before you commit it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "view.png"
SIZE = {"width": 1200, "height": 640}


def main() -> None:
    """Serve the result, open its tokens, and write the picture."""
    result = sys.argv[1]
    command = [sys.executable, "-m", "argap", "view", result, "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    chromium = os.environ.get("ARGAP_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")  # pyright: ignore
        page.goto(f"{address}{sys.argv[2] if len(sys.argv) > 2 else '#view=tokens'}")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PICTURE)
        browser.close()
    server.terminate()


if __name__ == "__main__":
    main()
