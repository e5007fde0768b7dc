"""The extension in a real editor: code-server, by a browser.

__main__.py  builds and packages the extension, makes workspaces, starts code-server with it, and walks journeys.mjs
journeys.mjs what people do with it: Playwright, Debian's Chromium
"""
