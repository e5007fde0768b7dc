from typing_extensions import Buffer

Died = tuple[int, int, int, int]

def run(
    blocks: Buffer,
    sizes: Buffer,
    streams: Buffer,
    names: int,
    plan: Buffer,
    renames: Buffer,
    table: Buffer,
    limit: int,
    oldest_first: bool,
    arena: int,
    large_segment: int,
    device_total: int,
    physical: int,
    asked: Buffer | None,
    /,
) -> tuple[bytes, bytes, int, int, int, int, Died | None, list[tuple[bytes, bytes]]]: ...
def least(
    blocks: Buffer,
    sizes: Buffer,
    streams: Buffer,
    names: int,
    plan: Buffer,
    renames: Buffer,
    table: Buffer,
    most: int,
    oldest_first: bool,
    arena: int,
    large_segment: int,
    device_total: int,
    is_physical: bool,
    /,
) -> int: ...
def shifted(starts: Buffer, origins: Buffer, places: Buffer, /) -> bytes: ...
def gathered(values: Buffer, places: Buffer, /) -> bytes: ...
def marks(sizes: Buffer, /) -> bytes: ...
def lives(blocks: Buffer, sizes: Buffer, bounds: Buffer, names: int, /) -> tuple[bool, list[bytes], list[bool]]: ...
def price(clocks: int, count: int, parts: int, /, *inputs: Buffer) -> bytes: ...

checksum: int
