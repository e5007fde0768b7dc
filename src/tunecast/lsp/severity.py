"""How grave a problem is, as the protocol counts it (LSP, DiagnosticSeverity)."""

from __future__ import annotations

ERROR, WARNING, INFORMATION = 1, 2, 3
