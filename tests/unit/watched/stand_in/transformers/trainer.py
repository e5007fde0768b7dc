"""What tunecast watch changes of it."""

DEFAULT_CALLBACKS: list[type] = []
