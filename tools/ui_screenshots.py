"""Take the screenshots of the web page for the documents: ``python tools/ui_screenshots.py``.

It runs the demonstration with its page, and photographs it after the restart of the driver. It needs Chromium, Java and
the group "dev". ``--all DIRECTORY`` also saves every page at two widths in both colour schemes, to look at.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.demo.script import SOURCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent.parent / "docs" / "images"
STREAM = "job1"
DOCUMENTED = {
    "ui-stream": f"/stream?name={STREAM}",
    "ui-table": f"/table?name={SOURCE}",
    "ui-rows": f"/table/rows?name={SOURCE}",
    "ui-tunnels": "/tunnels",
}
_OTHERS = {
    "streams": "/",
    "totals": "/stream?name=totals",
    "tables": "/tables",
    "changes": f"/table/changes?name={SOURCE}",
    "query": "/query",
}
_LARGEST = 150_000
_MAX_LAG = 3000
_SIZE = (1280, 860)
_SIZES = ((360, 740), (1600, 900))
"""The size of the images in the documents, and the sizes for ``--all``; in pixels."""


def main() -> None:
    """Run the demonstration, and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="DIRECTORY", help="also save every page in this directory")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with _demonstration() as address, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, path in DOCUMENTED.items():
            _take(browser, address + path, IMAGES / f"{name}.png", _SIZE, "light")
        if arguments.all is not None:
            for size in _SIZES:
                for scheme in ("light", "dark"):
                    for name, path in {**DOCUMENTED, **_OTHERS}.items():
                        file = arguments.all / f"{name}-{size[0]}-{scheme}.png"
                        _take(browser, address + path, file, size, scheme, whole=True)
        browser.close()
    large = [file.name for file in IMAGES.glob("ui-*.png") if file.stat().st_size > _LARGEST]
    if large:
        sys.exit(f"too large for the documents: {', '.join(large)}")


def _take(browser: Browser, url: str, file: Path, size: tuple[int, int], scheme: str, *, whole: bool = False) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    page.goto(url)
    _wait_for_charts(page)
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file, full_page=whole)
    context.close()


def _wait_for_charts(page: Page) -> None:
    # Without `wait_for_function`, whose polling the page's security policy forbids.
    for chart in page.locator("[data-chart]").all():
        chart.locator(".uplot").wait_for()


@contextmanager
def _demonstration() -> Iterator[str]:
    """Run the demonstration until its restarted driver has caught up; the address of its page."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "headrace.cli.main", "demo", "--ui", "--json", "--seconds", "45"]
        demo = subprocess.Popen([*command, "--dir", f"{directory}/shop"], stdout=subprocess.PIPE, text=True)
        try:
            assert demo.stdout is not None
            address, restarted = "", False
            for line in demo.stdout:
                facts = json.loads(line)
                address = facts.get("address", address)
                restarted = restarted or facts.get("step") == "driver-restarted"
                if restarted and facts.get("driver") == "running" and facts["lag"] < _MAX_LAG:
                    break
            yield address
        finally:
            demo.send_signal(signal.SIGTERM)
            demo.communicate()


if __name__ == "__main__":
    main()
