"""The page of `tunecast serve` in a real browser.

__main__.py   builds it anew, compares its figures with the commands', starts the server and walks journeys.mjs
journeys.mjs  what people do on the page: Playwright, Debian's Chromium, axe
files/        what they drop on it
"""
