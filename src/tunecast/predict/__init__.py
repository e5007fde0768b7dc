"""What a tape costs: the memory it needs (`allocator`, `expandable`, `memory`) and the time it takes."""
