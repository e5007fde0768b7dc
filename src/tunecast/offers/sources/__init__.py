"""Price lists others keep: SkyPilot's catalogue and gpuhunt's. Read as what they are, text from a server nobody vouches
for: bounded in bytes and rows, every cell checked, and refused whole where it is not what was asked for."""
